"""The process that tells speakers apart, as seen from the server: started when it is needed, ended when it is idle."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from loguru import logger
from numpy.typing import NDArray

from asr_server.core.errors import SpeakersUnavailable
from asr_server.core.idle import IdleTimer
from asr_server.speakers import wire
from asr_server.speakers.live_speakers import LiveSpeakers
from asr_server.speakers.models import Samples
from asr_server.speakers.package import EMBEDDED, VOICE_MODEL
from asr_server.speakers.turns import Diarization, SpeakerCount, Turn
from asr_server.speakers.wire import Action, SpeakerRequest

# Loading takes a second, from a slow disk many; an answer more if other processes keep the machine busy.
_START_S, _ANSWER_S = 60.0, 150.0
_BLOCK_SAMPLES = 32_000
_LIVE, _RECORDING = 0, 1  # who is answered first


@dataclass(slots=True)
class _Process:
    child: asyncio.subprocess.Process
    has_answered: bool = False


class SpeakerClient:
    """Tells the speakers of many recordings apart, at the same time. For one event loop.

    `source` names the models (see `model_files`). Every method raises `SpeakersUnavailable` if the process was lost:
    the recording's analysis is lost with it, and the next one starts another process.
    """

    def __init__(self, source: str, *, idle_timeout_s: float = 0.0) -> None:
        self._source = source
        self._process: _Process | None = None
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._is_busy = False
        self._numbers = itertools.count()
        self._idle = IdleTimer(idle_timeout_s)

    @property
    def pid(self) -> int | None:
        """The process, None while there is none."""
        return self._process.child.pid if self._process is not None else None

    @property
    def voice_model(self) -> str:
        """The name of what makes the voice prints. Those of different models cannot be compared."""
        return VOICE_MODEL if self._source == EMBEDDED else self._source

    @asynccontextmanager
    async def recording(self) -> AsyncGenerator[RecordingSpeakers, None]:
        """One recording; what is known of it is forgotten when the block ends."""
        self._idle.hold()
        try:
            process, number = await self._started(), next(self._numbers)
            await self._ask(process, _RECORDING, "start", number)
            try:
                yield RecordingSpeakers(self, process, number)
            finally:
                with suppress(SpeakersUnavailable):
                    await self._ask(process, _RECORDING, "close", number)
        finally:
            self._idle.release()

    def check_live(self) -> None:
        """It can tell live speakers apart."""

    async def live(self) -> LiveSpeakers:
        """A session, until it is closed."""
        self._idle.hold()
        try:
            process, number = await self._started(), next(self._numbers)
            await self._ask(process, _LIVE, "start", number, live=True)
        except BaseException:
            self._idle.release()
            raise
        return _LiveSpeakers(self, process, number)

    async def diarize(self, samples: Samples, count: SpeakerCount | None = None) -> Diarization:
        """A short recording as a whole: (n,) float32, mono, 16 kHz."""
        async with self.recording() as recording:
            await recording.push(samples)
            return await recording.finish(count or SpeakerCount())

    async def close_idle(self) -> None:
        """End the process if it was out of use for the idle timeout."""
        if self._process is not None and self._idle.expired:
            logger.info("speakers unloaded", idle_s=round(self._idle.idle_s))
            await self.close()

    async def close(self) -> None:
        """End the process. What is under way raises `SpeakersUnavailable`."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.child.kill()
            await process.child.wait()

    async def _started(self) -> _Process:
        async with self._turn(_RECORDING):
            if self._process is not None and self._process.child.returncode is None:
                return self._process
            try:
                child = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", "asr_server.speakers.worker", self._source),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    env=_environment(),
                    start_new_session=True,  # a Ctrl-C in the terminal reaches the server alone
                )
            except OSError as error:
                raise SpeakersUnavailable("The process that tells speakers apart cannot be started.") from error
            self._process = _Process(child)
            return self._process

    async def _ask(
        self, process: _Process, priority: int, action: Action, number: int, **fields: Any
    ) -> tuple[dict[str, Any], NDArray[np.float32]]:
        """One request and its answer. A cancelled request is answered all the same, before the next one is sent."""
        samples = fields.pop("samples", None)
        message = wire.packed(asdict(SpeakerRequest(action, number, **fields)), samples)
        async with self._turn(priority):
            exchange = asyncio.ensure_future(self._exchanged(process, message))
            try:
                return await asyncio.shield(exchange)
            except asyncio.CancelledError:
                with suppress(SpeakersUnavailable):
                    await exchange
                raise

    async def _exchanged(self, process: _Process, message: bytes) -> tuple[dict[str, Any], NDArray[np.float32]]:
        child, wait_s = process.child, _ANSWER_S if process.has_answered else _START_S
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            async with asyncio.timeout(wait_s):
                child.stdin.write(message)
                await child.stdin.drain()
                sizes = wire.sizes(await child.stdout.readexactly(wire.HEADER.size))
                parts = [await child.stdout.readexactly(size) for size in sizes]
        except (OSError, asyncio.IncompleteReadError, TimeoutError, ValueError) as error:
            if process is self._process:
                await self.close()
            logger.warning("the process that tells speakers apart was lost", error=type(error).__name__)
            raise SpeakersUnavailable("The process that tells speakers apart was lost; try again.") from error
        process.has_answered = True
        content, numbers = wire.unpacked(*parts)
        if "error" in content:
            logger.error("a recording's speakers cannot be told apart", error=content["error"])
            raise SpeakersUnavailable("The speakers of this recording cannot be told apart.")
        return content, numbers

    @asynccontextmanager
    async def _turn(self, priority: int) -> AsyncGenerator[None, None]:
        """One request at a time: live sessions first, then whoever has waited longest."""
        if self._is_busy:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (priority, next(self._numbers), turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():  # the turn came in the same moment
                    self._next()
                raise
        self._is_busy = True
        try:
            yield
        finally:
            self._next()

    def _next(self) -> None:
        self._is_busy = False
        while self._waiting:
            *_, turn = heapq.heappop(self._waiting)
            if not turn.done():
                self._is_busy = True
                turn.set_result(None)
                return


class _LiveSpeakers:
    """One live session. See `LiveSpeakers`."""

    def __init__(self, client: SpeakerClient, process: _Process, number: int) -> None:
        self.settled_ms = 0
        self._client = client
        self._process = process
        self._number = number

    async def push(self, samples: Samples) -> tuple[Turn, ...]:
        changed: list[Turn] = []
        for begin in range(0, len(samples), _BLOCK_SAMPLES):
            block = samples[begin : begin + _BLOCK_SAMPLES]
            answer, _ = await self._client._ask(self._process, _LIVE, "push", self._number, samples=block)
            self.settled_ms = answer["settled_ms"]
            changed += wire.turns(answer)
        return tuple(changed)

    async def close(self) -> None:
        self._client._idle.release()
        await self._client._ask(self._process, _LIVE, "close", self._number)


class RecordingSpeakers:
    """One recording whose speakers are told apart."""

    def __init__(self, client: SpeakerClient, process: _Process, number: int) -> None:
        self._client = client
        self._process = process
        self._number = number

    async def push(self, samples: Samples) -> None:
        """The next samples: (n,) float32, mono, 16 kHz."""
        for begin in range(0, len(samples), _BLOCK_SAMPLES):
            block = samples[begin : begin + _BLOCK_SAMPLES]
            await self._client._ask(self._process, _RECORDING, "push", self._number, samples=block)

    async def finish(self, count: SpeakerCount) -> Diarization:
        """All turns. Nothing can be pushed afterwards."""
        bounds = {"at_least": count.at_least, "at_most": count.at_most}
        return wire.diarization(*await self._client._ask(self._process, _RECORDING, "finish", self._number, **bounds))


def _environment() -> dict[str, str]:
    """Keys and tokens stay in the server, and numpy starts no threads."""
    package_root = str(Path(__file__).parents[2])
    return {
        "PYTHONPATH": os.pathsep.join([package_root, *(entry for entry in sys.path if entry)]),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "LC_ALL": "C.UTF-8",
    }
