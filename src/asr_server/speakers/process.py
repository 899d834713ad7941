"""The process that tells speakers apart, as seen from the server: start it, ask it, end it. One request at a time."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from loguru import logger
from numpy.typing import NDArray

from asr_server.core.audio import samples_to_s
from asr_server.core.errors import SpeakersUnavailable
from asr_server.speakers import model_source, wire
from asr_server.speakers.wire import SpeakerRequest

# Loading takes a second, from a slow disk many.
_START_S = 60.0
# How long an answer may take; a process that takes longer hangs. An idle core takes 0.11 s for each second of sound,
# and at the end 0.0001 s for each second of the recording. The rest is for machines that other processes keep busy.
_LATE_S, _PER_SOUND_S, _PER_RECORDING_S = 15.0, 5.0, 0.01
# While recordings wait, one of them follows after so many requests of live sessions.
_LIVE_IN_A_ROW = 4


@dataclass(frozen=True, slots=True)
class Answer:
    """The two parts of an answer: see `wire`."""

    content: dict[str, Any]
    numbers: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """What a request has the process do. `samples`: the next ones. `ends_s`: how long the recording is that it ends."""

    samples: NDArray[np.float32] | None = None
    ends_s: float = 0.0

    @property
    def limit_s(self) -> float:
        """How long the answer may take."""
        sound_s = 0.0 if self.samples is None else samples_to_s(len(self.samples))
        return _LATE_S + _PER_SOUND_S * sound_s + _PER_RECORDING_S * self.ends_s


class SpeakerProcess:
    """A running process, or one that has ended. For one event loop."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self._child = child
        self._turns = Turns()
        self._has_answered = False
        self._dropped: list[int] = []  # analyses that are not needed any more; the next request says so
        self._exchange: asyncio.Task[Answer] | None = None

    @classmethod
    async def start(cls, source: str) -> SpeakerProcess:
        """`source`: see `model_source`. Raises `SpeakersUnavailable`."""
        source = await asyncio.wrap_future(_locating(source))
        try:
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "asr_server.speakers.worker", source),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=_environment(),
                start_new_session=True,  # a Ctrl-C in the terminal reaches the server alone
            )
        except OSError as error:
            raise SpeakersUnavailable("The process that tells speakers apart cannot be started.") from error
        return cls(child)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child.returncode is None

    async def ask(self, request: SpeakerRequest, work: Work, *, is_live: bool) -> Answer:
        """The answer to one request. Raises `SpeakersUnavailable`, also for all that wait if it takes longer than the
        work can.

        Cancelling returns at once. A request that was sent is still answered before the next one is.
        """
        await self._turns.take(is_live=is_live)
        self._exchange = exchange = asyncio.create_task(self._exchanged(request, work))
        exchange.add_done_callback(self._on_exchanged)
        return await asyncio.shield(exchange)

    def drop(self, analysis: int) -> None:
        """An analysis is not needed any more: what the process knows of it is forgotten."""
        self._dropped.append(analysis)

    async def end(self) -> None:
        """Kill it. The requests under way raise `SpeakersUnavailable`."""
        await self._kill()
        if self._exchange is not None:
            await asyncio.wait([self._exchange])

    def _on_exchanged(self, exchange: asyncio.Task[Answer]) -> None:
        self._turns.give_back()
        if not exchange.cancelled():
            exchange.exception()  # whoever asked may have gone

    async def _exchanged(self, request: SpeakerRequest, work: Work) -> Answer:
        dropped, self._dropped = self._dropped, []
        message = wire.packed(asdict(replace(request, dropped=tuple(dropped))), work.samples)
        try:
            if not self.is_running:
                raise BrokenPipeError
            async with asyncio.timeout(work.limit_s + (0 if self._has_answered else _START_S)):
                answer = await self._sent(message)
        except (OSError, asyncio.IncompleteReadError, TimeoutError, ValueError) as error:
            if self.is_running:
                logger.warning("the process that tells speakers apart was lost", error=type(error).__name__)
            await self._kill()
            raise SpeakersUnavailable("The process that tells speakers apart was lost; try again.") from error
        self._has_answered = True
        if reason := answer.content.get("unusable"):
            logger.error("the models that tell speakers apart cannot be loaded", reason=reason)
            await self._kill()
            raise SpeakersUnavailable(f"SPEAKERS: {reason}.")
        if "error" in answer.content:
            logger.error("a recording's speakers cannot be told apart", error=answer.content["error"])
            raise SpeakersUnavailable("The speakers of this recording cannot be told apart.")
        return answer

    async def _sent(self, message: bytes) -> Answer:
        requests, answers = self._child.stdin, self._child.stdout
        assert requests is not None
        assert answers is not None
        requests.write(message)
        await requests.drain()
        sizes = wire.sizes(await answers.readexactly(wire.HEADER.size))
        return Answer(*wire.unpacked(*[await answers.readexactly(size) for size in sizes]))

    async def _kill(self) -> None:
        with suppress(ProcessLookupError):
            self._child.kill()
        await self._child.wait()


class Turns:
    """Whose turn it is: live sessions first, but recordings are not kept waiting for ever."""

    def __init__(self) -> None:
        self._live: deque[asyncio.Future[None]] = deque()
        self._recordings: deque[asyncio.Future[None]] = deque()
        self._is_taken = False
        self._live_in_a_row = 0

    async def take(self, *, is_live: bool) -> None:
        """Wait for a turn. `give_back` must follow."""
        if not self._is_taken:
            self._is_taken = True
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        (self._live if is_live else self._recordings).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the turn came in the same moment
                self.give_back()
            raise

    def give_back(self) -> None:
        """The turn is over."""
        live, recordings = _waiting(self._live), _waiting(self._recordings)
        is_live = bool(live) and not (recordings and self._live_in_a_row >= _LIVE_IN_A_ROW)
        self._live_in_a_row = self._live_in_a_row + 1 if is_live else 0
        queue = live if is_live else recordings
        self._is_taken = bool(queue)
        if queue:
            queue.popleft().set_result(None)


def _waiting(queue: deque[asyncio.Future[None]]) -> deque[asyncio.Future[None]]:
    """The queue without those at its head who have gone."""
    while queue and queue[0].done():
        queue.popleft()
    return queue


def _locating(source: str) -> Future[str]:
    """`model_source.located` on a thread that does not keep the server from ending."""
    located: Future[str] = Future()

    def run() -> None:
        located.set_running_or_notify_cancel()
        try:
            located.set_result(model_source.located(source))
        except BaseException as error:
            located.set_exception(error)

    threading.Thread(target=run, name="speakers-locate", daemon=True).start()
    return located


def _environment() -> dict[str, str]:
    """Keys and tokens stay in the server, and numpy starts no threads."""
    package_root = str(Path(__file__).parents[2])
    paths: Iterable[str] = [package_root, *(entry for entry in sys.path if entry)]
    return {
        "PYTHONPATH": os.pathsep.join(paths),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "LC_ALL": "C.UTF-8",
    }
