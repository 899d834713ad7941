"""One live session: the shell around the pure machine. Submits what it asks for and brings the answers back.

The machine decides and this performs. Everything here runs on the event loop; the engine works on its own thread. What
the client sends waits in an inbox that one task empties, so that the order holds over a change of connections.
"""

from __future__ import annotations

import asyncio
import functools
import time
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

from loguru import logger

from asr_server.core.audio import SAMPLE_RATE, s_to_ms
from asr_server.core.errors import AsrError, SessionTaken
from asr_server.live.events import (
    Action,
    Audio,
    CancelRequest,
    Close,
    Configure,
    Event,
    Final,
    Flush,
    Interrupted,
    Partial,
    Transcribe,
    TranscribeFailed,
    TranscribeResult,
    UtteranceEnded,
)
from asr_server.live.session import LiveMachine, LiveMachineConfig
from asr_server.live.table import State
from asr_server.service.live_session.final_words import FinalWordTimes
from asr_server.service.live_session.inference import Engines, LiveInference
from asr_server.service.live_session.outbox import Outbox, Outgoing
from asr_server.service.live_session.session_stats import SessionOutcome, SessionStats
from asr_server.service.requests import WordTimes

_SLICE_BYTES = 32 * 1024  # about 1 s at 16 kHz: 2 ms of work, then others get their turn
_INBOX_BYTES = 32 * 1024 * 1024  # audio that may wait to be looked at; then the socket is not read any more
_PIECE_BYTES = 8 * 1024  # smaller pieces of audio wait as one: each alone would take many times its size
_EVENT_BYTES = 8 * 1024  # what an event counts besides its audio: far more than it is, so that few of them wait
_BACKLOG_SAMPLES = 120 * SAMPLE_RATE  # audio of ended utterances without a final, before no more is looked at
_FINALS_KEPT = 256  # a client misses at most what was on its way when the connection broke
_ARRIVALS_KEPT = 8_192


@dataclass(frozen=True, slots=True)
class _Left:
    """The connection is gone. `clean`: the client ended it, so the open utterance ends; else it waits."""

    clean: bool


@dataclass(frozen=True, slots=True)
class _Incoming:
    event: Event | _Left
    arrived_s: float
    size_bytes: int


@dataclass(slots=True)
class _Arrivals:
    """When which audio came, for the lag."""

    clocks: deque[int] = field(default_factory=lambda: deque(maxlen=_ARRIVALS_KEPT))
    times_s: deque[float] = field(default_factory=lambda: deque(maxlen=_ARRIVALS_KEPT))

    def note(self, clock_samples: int, time_s: float) -> None:
        self.clocks.append(clock_samples)
        self.times_s.append(time_s)

    def lag_ms(self, end_samples: int) -> int:
        """Milliseconds since the sample before `end_samples` arrived."""
        place = bisect_left(self.clocks, end_samples)
        if place >= len(self.times_s):
            return 0
        return max(0, s_to_ms(time.monotonic() - self.times_s[place]))


class LiveSession:
    """Made by `LiveSessions`; clients reach it through a `Connection`."""

    def __init__(
        self,
        identity: str,
        config: LiveMachineConfig,
        engines: Engines,
        timeout_s: float,
        words: WordTimes = WordTimes.NONE,
    ) -> None:
        self.id = identity
        self.input_rate_hz = config.input_rate_hz
        self.free = asyncio.Event()  # set while no connection has the session
        self.received_bytes = 0
        self.rules = config.rules  # as last wished, also while that still waits in the inbox
        self.over = False  # given up: nobody can go on with it
        self._machine = LiveMachine(config)
        self._outbox = Outbox()
        self._words = FinalWordTimes(engines.accurate, words, lambda spoken: self._outbox.put(Outgoing(spoken)))
        self._inbox: deque[_Incoming] = deque()
        self._inbox_bytes = 0
        self._arrivals = _Arrivals()
        self.tally = SessionStats(engines.watch, lambda end: self._arrivals.lag_ms(end) / 1000)
        self._finals: deque[Outgoing] = deque(maxlen=_FINALS_KEPT)
        self._answers = LiveInference(engines, identity, timeout_s)
        self._jobs: dict[int, asyncio.Task[TranscribeResult]] = {}
        self._moved = asyncio.Event()
        self._task = asyncio.create_task(self._work())
        self._task.add_done_callback(self._stopped)

    @property
    def machine(self) -> LiveMachine:
        """The machine, for looking at."""
        return self._machine

    @property
    def log_name(self) -> str:
        """The part of the id that may be logged: who knows all of it may resume the session."""
        return self.id.partition(".")[0]

    def connect(self, received: int = 0) -> Connection:
        """A fresh connection: it gets the finals after utterance `received`, then the open utterance as it stands.

        The connection that had the session before ends with `SessionTaken`.
        """
        self._outbox.close(SessionTaken("The session goes on over another connection."))
        self._outbox = Outbox(
            [kept for kept in self._finals if isinstance(kept.message, Final) and kept.message.utterance > received]
        )
        self.free.clear()
        if (current_partial := self._machine.current_partial) is not None:
            self._outbox.put(Outgoing(current_partial, self._arrivals.lag_ms(current_partial.end_samples)))
        return Connection(self, self._outbox)

    def has(self, outbox: Outbox) -> bool:
        """Whether this outbox is that of the present connection."""
        return self._outbox is outbox

    async def accept(self, event: Event, outbox: Outbox) -> None:
        """Take an event in from the connection with this outbox. Waits while too much is waiting already.

        Raises `SessionTaken`, also when the connection lost the session in that time: the next one was told how much
        audio had arrived, and its client sends the rest again.
        """
        size = _size(event)
        while self.has(outbox) and self._inbox and self._inbox_bytes + size > _INBOX_BYTES:
            await self._next_move()
        if not self.has(outbox):
            raise SessionTaken("The session goes on over another connection.")
        self._put(event, size)

    def leave(self, *, clean: bool) -> None:
        """The connection is gone; what it had sent is worked through first."""
        self.tally.left(clean=clean)
        self._outbox.close()
        self._put(_Left(clean), 0)
        self.free.set()

    async def finish(self) -> None:
        """End the open utterance; returns when the last final is in the outbox, which is then closed."""
        self._put(Close(), 0)
        while not self._task.done() and (self._inbox or self._machine.state is not State.CLOSED or self._machine.busy):
            await self._next_move()

    def end(self, error: AsrError | None = None) -> None:
        """Give up whatever is under way, and end the connection."""
        self.over = True
        self._task.cancel()
        self._words.close()
        self._moved.set()
        for job in list(self._jobs.values()):
            job.cancel()
        self._outbox.close(error)

    # -- events ------------------------------------------------------------------------------------------------------

    def _put(self, event: Event | _Left, size: int) -> None:
        match event:
            case Audio(pcm=pcm):
                self.received_bytes += len(pcm)
                if self._joined(pcm):
                    return
            case Configure(rules=rules):
                self.rules = rules
        self._inbox.append(_Incoming(event, time.monotonic(), size))
        self._inbox_bytes += size
        self._moved.set()

    def _joined(self, pcm: bytes) -> bool:
        """Whether the audio could be put behind the last that waits; the first is being worked on."""
        last = self._inbox[-1] if len(self._inbox) > 1 else None
        if last is None or not isinstance(last.event, Audio) or len(last.event.pcm) + len(pcm) > _PIECE_BYTES:
            return False
        joined = replace(last, event=Audio(last.event.pcm + pcm), size_bytes=last.size_bytes + len(pcm))
        self._inbox[-1] = joined
        self._inbox_bytes += len(pcm)
        return True

    async def _work(self) -> None:
        """Empty the inbox, for the life of the session."""
        while True:
            while not self._inbox:
                await self._next_move()
            await self._work_on(self._inbox[0])
            self._inbox_bytes -= self._inbox.popleft().size_bytes
            self._moved.set()

    async def _work_on(self, incoming: _Incoming) -> None:
        match incoming.event:
            case Audio(pcm=pcm):
                await self._hear(pcm, incoming.arrived_s)
            case _Left(clean=clean):
                opened = self._machine.state in (State.SPEAKING, State.PAUSING)
                self._tell(Flush() if clean and opened else Interrupted())
            case event:
                self._tell(event)

    def _stopped(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broke(error)

    def _broke(self, error: BaseException) -> None:
        """A fault of ours in the middle of a session ends it with an error instead of leaving it mute."""
        logger.opt(exception=error).error("live session failed", session=self.log_name)
        self.tally.outcome = SessionOutcome.FAILED
        self.end(AsrError("The server failed on this session; the log has the details."))

    async def _hear(self, pcm: bytes, arrived_s: float) -> None:
        for at in range(0, len(pcm), _SLICE_BYTES):
            while self._machine.backlog_samples > _BACKLOG_SAMPLES:
                await self._next_move()
            effects = self._machine.receive(Audio(pcm[at : at + _SLICE_BYTES]))
            self._arrivals.note(self._machine.clock_samples, arrived_s)
            self._perform(effects)
            await asyncio.sleep(0)

    async def _next_move(self) -> None:
        self._moved.clear()
        await self._moved.wait()

    def _tell(self, event: Event) -> None:
        self._perform(self._machine.receive(event))

    # -- effects -----------------------------------------------------------------------------------------------------

    def _perform(self, effects: list[Action]) -> None:
        for effect in effects:
            match effect:
                case Transcribe():
                    self._submit(effect)
                case CancelRequest(ticket=ticket):
                    if ticket in self._jobs:
                        self._jobs[ticket].cancel()
                case _:
                    self.tally.note(effect)
                    self._send(Outgoing(effect, self._lag_ms(effect)))
        self._moved.set()

    def _send(self, outgoing: Outgoing) -> None:
        if isinstance(outgoing.message, Final):
            self._finals.append(outgoing)
            self._words.told(outgoing.message)
        self._outbox.put(outgoing)

    def _lag_ms(self, effect: Action) -> int:
        if isinstance(effect, Partial | Final | UtteranceEnded):
            return self._arrivals.lag_ms(effect.end_samples)
        return 0

    def _submit(self, asked: Transcribe) -> None:
        self._words.asked(asked)
        job = asyncio.create_task(self._answers.to(asked))
        self._jobs[asked.ticket] = job
        job.add_done_callback(functools.partial(self._answered, asked.ticket))

    def _answered(self, ticket: int, job: asyncio.Task[TranscribeResult]) -> None:
        self._jobs.pop(ticket, None)
        if job.cancelled():
            return
        error = job.exception()
        if error is not None:
            self._fail(ticket, error)
        else:
            self._bring(job.result())

    def _fail(self, ticket: int, error: BaseException) -> None:
        known = error if isinstance(error, AsrError) else AsrError("The server failed on this audio.")
        logger.opt(exception=error.__cause__).warning("live answer failed", session=self.log_name, code=known.code)
        self._bring(TranscribeFailed(ticket, known.code, known.message))

    def _bring(self, answer: TranscribeResult | TranscribeFailed) -> None:
        """An answer to the machine. This runs as a callback: nobody but us would see a fault of ours in it."""
        if self.over:
            return
        try:
            self._tell(answer)
        except Exception as error:
            self._broke(error)


@dataclass(frozen=True, slots=True, eq=False)
class Connection:
    """A client's end of a session, until it leaves or another connection takes the session over."""

    session: LiveSession
    outbox: Outbox

    async def tell(self, event: Event) -> None:
        """One event from the client. Raises `SessionTaken`."""
        await self.session.accept(event, self.outbox)

    def messages(self) -> AsyncIterator[Outgoing]:
        """What to send, until the session ends; then the error that ended it is raised, if one did."""
        return self.outbox.messages()


def _size(event: Event) -> int:
    """What an event counts while it waits."""
    match event:
        case Audio(pcm=pcm):
            return _EVENT_BYTES + len(pcm)
        case Configure(rules=rules):
            return _EVENT_BYTES + 4 * len(rules.context)
        case _:
            return _EVENT_BYTES
