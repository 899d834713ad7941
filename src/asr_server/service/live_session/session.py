"""One live session: feeds a `LiveMachine` with what its client sends, and performs the actions that it returns.

The machine decides; this module submits its requests to the engine, brings the results back to it, and puts messages
into the outbox of the present connection. Everything runs on the event loop: between two `await`s nothing else changes
the session. One task empties the inbox, so the order of events holds over a change of connections.
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

from asr_server.core.audio import SAMPLE_RATE, s_to_ms, samples_to_s
from asr_server.core.errors import AsrError, SessionTaken
from asr_server.live.config import LiveMachineConfig
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
    ResetDone,
    ResultKind,
    Transcribe,
    TranscribeFailed,
    TranscribeResult,
    UtteranceEnded,
)
from asr_server.live.session import LiveMachine
from asr_server.live.table import State
from asr_server.scheduling.admission import AdmissionTicket
from asr_server.scheduling.job import Priority
from asr_server.scheduling.shared_bytes import PIECE_BYTES
from asr_server.service.live_session.final_words import FinalWordTimes, WordTimestamps
from asr_server.service.live_session.inbox import Disconnected, Inbox, Incoming
from asr_server.service.live_session.inference import LiveInference
from asr_server.service.live_session.options import LiveSessionOptions, Shared
from asr_server.service.live_session.outbox import Outbox, Outgoing
from asr_server.service.live_session.session_speakers import SessionSpeakers
from asr_server.service.live_session.session_stats import SessionOutcome, SessionStats
from asr_server.service.live_session.speaker_labels import SpeakerLabels, SpeakersLost, UtteranceSpeakers
from asr_server.service.turns import turns

_SLICE_BYTES, _SLICE_COST_S = 4 * 1024, 0.002  # 128 ms at 16 kHz, and about how long they take
_SAMPLE_BYTES = 4  # once in frames
# Whoever has sent so much more audio than time has passed is not speaking, but sending a recording.
_AHEAD_S = 10.0
_BACKLOG_SAMPLES = 120 * SAMPLE_RATE  # of ended utterances without a final, before no more audio is processed
_FINALS_KEPT = 256  # a client misses at most what was on its way when the connection broke
_ARRIVALS_KEPT = 8_192


@dataclass(slots=True)
class _ArrivalTimes:
    """When which audio arrived."""

    ends_samples: deque[int] = field(default_factory=lambda: deque(maxlen=_ARRIVALS_KEPT))
    times_s: deque[float] = field(default_factory=lambda: deque(maxlen=_ARRIVALS_KEPT))

    def add(self, end_samples: int, time_s: float) -> None:
        self.ends_samples.append(end_samples)
        self.times_s.append(time_s)

    def lag_ms(self, end_samples: int) -> int:
        """Milliseconds since the sample before `end_samples` arrived."""
        place = bisect_left(self.ends_samples, end_samples)
        if place >= len(self.times_s):
            return 0
        return max(0, s_to_ms(time.monotonic() - self.times_s[place]))


class LiveSession:
    """Made by `LiveSessions`; clients reach it through a `Connection`. `ticket`: its place in the admission."""

    def __init__(
        self,
        identity: str,
        options: LiveSessionOptions,
        config: LiveMachineConfig,
        shared: Shared,
        ticket: AdmissionTicket,
    ) -> None:
        engines = shared.engines
        self.id = identity
        self.input_rate_hz = config.input_rate_hz
        self.detached = asyncio.Event()  # set while no connection has the session
        self.received_bytes = 0
        self.rules = config.rules  # as last configured, also while that still waits in the inbox
        self.ended = False  # nobody can resume it
        self.speakers: SessionSpeakers | None = None
        if options.speakers and shared.speakers is not None:
            labels = SpeakerLabels(options.first_speaker)
            self.speakers = SessionSpeakers(
                shared.speakers, labels, self._send_speakers, shared.voices_of(options.owner)
            )
            config = replace(config, on_samples=self.speakers.hear)
        self.machine = LiveMachine(config)
        self._shared, self._ticket = shared, ticket
        self._share = shared.memory.share()
        self._began_s = time.monotonic()
        self._inbox = Inbox(shared.memory)
        self._outbox = Outbox()
        self._arrivals = _ArrivalTimes()
        self.stats = SessionStats(engines.observer, lambda end: self._arrivals.lag_ms(end) / 1000)
        self._finals: deque[Outgoing] = deque(maxlen=_FINALS_KEPT)
        self._inference = LiveInference(engines, identity, shared.timeout_s)
        self._requests: dict[int, asyncio.Task[TranscribeResult]] = {}
        self._word_times = FinalWordTimes(engines.of, options.words, self._send_words)
        # The machine has changed. Whoever waits clears it before, and then checks what it waits for.
        self._machine_changed = asyncio.Event()
        with logger.contextualize(session=self.log_name):
            self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._on_run_done)

    @property
    def log_name(self) -> str:
        """The part of the id that may be logged: who knows all of it may resume the session."""
        return self.id.partition(".")[0]

    # -- connections -------------------------------------------------------------------------------------------------

    def connect(self, received: int = 0) -> Connection:
        """A new connection: it gets the finals after utterance `received` and the labels of those before, then the open
        utterance as it stands.

        The connection that had the session before ends with `SessionTaken`.
        """
        self._outbox.close(SessionTaken("The session goes on over another connection."))
        self._outbox = Outbox([missed for kept in self._finals if (missed := _missed(kept, received)) is not None])
        self.detached.clear()
        self._ticket.left = False
        if (partial := self.machine.current_partial) is not None:
            self._outbox.put(self._labelled(Outgoing(partial, self._arrivals.lag_ms(partial.end_samples))))
        return Connection(self, self._outbox)

    def is_current(self, outbox: Outbox) -> bool:
        """Whether this outbox is that of the present connection."""
        return self._outbox is outbox

    async def accept(self, event: Event, outbox: Outbox) -> None:
        """Take an event from the connection with this outbox. Waits while too much waits to be processed.

        Raises `SessionTaken`, also when another connection took the session during the wait: that one was told how
        many bytes had arrived, and its client sends the rest again. Counting these bytes too would double them.
        Raises `Overloaded` for a large frame, and takes nothing of it, if the frames in hand of all sessions and what
        they have taken are too much.
        """
        if not isinstance(event, Audio) or len(event.pcm) <= PIECE_BYTES:
            await self._take(event, outbox)
            return
        with self._shared.memory.in_hand(len(event.pcm)):
            for at in range(0, len(event.pcm), PIECE_BYTES):
                await self._take(Audio(event.pcm[at : at + PIECE_BYTES]), outbox)

    async def _take(self, event: Event, outbox: Outbox) -> None:
        if self.is_current(outbox):
            await self._inbox.wait_for_room(event)
        if not self.is_current(outbox):
            raise SessionTaken("The session goes on over another connection.")
        match event:
            case Audio(pcm=pcm):
                self.received_bytes += len(pcm)
            case Configure(rules=rules):
                self.rules = rules
        self._inbox.put(event)
        self._account()

    def _account(self) -> None:
        """Tell the others what this session holds, and how much audio waits here for an answer."""
        backlog = self.machine.backlog_samples
        self._share.set(self._inbox.size_bytes + _SAMPLE_BYTES * backlog + self._outbox.waiting_bytes)
        partial = self.machine.current_partial
        since_start = self.machine.clock_samples - partial.start_samples if partial is not None else 0
        self._ticket.seconds = self._inbox.audio_bytes / (2 * self.input_rate_hz) + samples_to_s(backlog + since_start)

    def disconnect(self, *, clean: bool) -> None:
        """The connection is gone; what it had sent is processed first."""
        self.stats.on_disconnect(clean=clean)
        self._outbox.close()
        self._inbox.put(Disconnected(clean))
        self._ticket.left = clean
        self.detached.set()

    async def finish(self) -> None:
        """End the open utterance. Returns when its final is in the outbox."""
        self._inbox.put(Close())
        while not self._task.done() and (self._inbox or self.machine.state is not State.CLOSED or self.machine.busy):
            await self._next_change()

    def end(self, error: AsrError | None = None) -> None:
        """Cancel whatever is under way, and end the connection, with the error if there is one."""
        self.ended = True
        self._task.cancel()
        self._word_times.close()
        if self.speakers is not None:
            self.speakers.close()
        self._machine_changed.set()
        for request in list(self._requests.values()):
            request.cancel()
        self._outbox.close(error)
        self._inbox.clear()
        self._share.set(0)
        self._ticket.seconds = 0.0

    # -- events: from the inbox and from the engine to the machine ---------------------------------------------------

    async def _run(self) -> None:
        """Process the inbox, for the life of the session."""
        while True:
            await self._process(await self._inbox.first())
            self._inbox.remove_first()
            self._account()
            self._machine_changed.set()  # `finish` waits for the inbox too

    async def _process(self, incoming: Incoming) -> None:
        match incoming.event:
            case Audio(pcm=pcm):
                await self._process_audio(pcm, incoming.arrived_s)
            case Disconnected(clean=clean):
                is_open = self.machine.state not in (State.LISTENING, State.CLOSED)
                self._feed(Flush() if clean and is_open else Interrupted())
            case event:
                self._feed(event)

    async def _process_audio(self, pcm: bytes, arrived_s: float) -> None:
        for at in range(0, len(pcm), _SLICE_BYTES):
            while self.machine.backlog_samples > self._most_backlog_samples:
                await self._next_change()
            piece, priority = pcm[at : at + _SLICE_BYTES], self._priority
            if priority.is_live:
                await self._process_slice(piece, arrived_s)
                continue
            async with self._shared.paces[priority]:
                began_s = time.monotonic()
                await self._process_slice(piece, arrived_s)
                await asyncio.sleep(time.monotonic() - began_s)
                # What nobody listens to is transcribed one after the other, so that it does not fill the batch.
                while self._priority is Priority.BULK and self.machine.busy and not self.ended:
                    await self._next_change()

    async def _process_slice(self, pcm: bytes, arrived_s: float) -> None:
        await turns().next(_SLICE_COST_S)
        actions = self.machine.receive(Audio(pcm))
        # Before the actions: their lag is counted from here.
        self._arrivals.add(self.machine.clock_samples, arrived_s)
        self._perform(actions)

    @property
    def _most_backlog_samples(self) -> int:
        return min(_BACKLOG_SAMPLES, self._shared.memory.queue_bytes // _SAMPLE_BYTES)

    async def _next_change(self) -> None:
        self._machine_changed.clear()
        await self._machine_changed.wait()

    def _feed(self, event: Event) -> None:
        self._perform(self.machine.receive(event))

    def _on_run_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """A fault of the server's ends the session with an error; otherwise its client would wait for ever."""
        logger.opt(exception=error).error("live session failed", session=self.log_name)
        self.stats.outcome = SessionOutcome.FAILED
        self.end(AsrError("The server failed on this session; the log has the details."))

    # -- actions of the machine --------------------------------------------------------------------------------------

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Transcribe():
                    self._submit(action)
                case CancelRequest(ticket=ticket):
                    if ticket in self._requests:
                        self._requests[ticket].cancel()
                case _:
                    self.stats.count(action)
                    self._send(self._labelled(Outgoing(action, self._lag_ms(action))))
        self._machine_changed.set()

    def _send(self, outgoing: Outgoing) -> None:
        if isinstance(outgoing.message, Final):
            self._finals.append(outgoing)
            self._word_times.on_final(outgoing.message)
        self._outbox.put(outgoing)

    def _labelled(self, outgoing: Outgoing) -> Outgoing:
        """The message; a text with its speakers, where they are told apart."""
        match outgoing.message:
            case Partial() | Final() if self.speakers is not None:
                return replace(outgoing, speakers=self.speakers.labels.on_text(outgoing.message))
            case ResetDone(utterance=int(discarded)) if self.speakers is not None:
                self.speakers.labels.discard(discarded)
        return outgoing

    def _send_speakers(self, message: UtteranceSpeakers | SpeakersLost) -> None:
        if isinstance(message, UtteranceSpeakers):
            for place, kept in enumerate(self._finals):
                if isinstance(kept.message, Final) and kept.message.utterance == message.utterance:
                    self._finals[place] = replace(kept, speakers=message)
        self._outbox.put(Outgoing(message))

    def _send_words(self, timed: WordTimestamps) -> None:
        self._outbox.put(Outgoing(self.speakers.labels.on_words(timed) if self.speakers is not None else timed))

    def _lag_ms(self, action: Action) -> int:
        if isinstance(action, Partial | Final | UtteranceEnded):
            return self._arrivals.lag_ms(action.end_samples)
        return 0

    def _submit(self, request: Transcribe) -> None:
        self._word_times.on_request(request)
        priority = self._priority
        if priority.is_live and request.kind is ResultKind.FINAL:
            priority = Priority.FINAL
        task = asyncio.create_task(self._inference.transcribe(request, priority))
        self._requests[request.ticket] = task
        task.add_done_callback(functools.partial(self._on_request_done, request.ticket))

    @property
    def _priority(self) -> Priority:
        """Of partials. A speaker goes first. A recording that comes faster than it is spoken has the same right as one
        in a file, and gives way to others when its client is gone."""
        ahead_s = self.received_bytes / (2 * self.input_rate_hz) - (time.monotonic() - self._began_s)
        if ahead_s <= _AHEAD_S:
            return Priority.PARTIAL
        return Priority.BULK if self.detached.is_set() else Priority.INTERACTIVE

    def _on_request_done(self, ticket: int, task: asyncio.Task[TranscribeResult]) -> None:
        self._requests.pop(ticket, None)
        if task.cancelled() or self.ended:
            return
        try:
            error = task.exception()
            self._feed(task.result() if error is None else self._failure(ticket, error))
            self._account()
        except Exception as fault:  # asyncio would only log what a callback raises
            self._fail(fault)

    def _failure(self, ticket: int, error: BaseException) -> TranscribeFailed:
        known = error if isinstance(error, AsrError) else AsrError("The server failed on this audio.")
        logger.opt(exception=error.__cause__).warning("live answer failed", session=self.log_name, code=known.code)
        return TranscribeFailed(ticket, known.code, known.message)


def _missed(kept: Outgoing, received: int) -> Outgoing | None:
    """What a client needs of a final: nothing but the present labels, if it has the finals up to `received`."""
    if isinstance(kept.message, Final) and kept.message.utterance > received:
        return kept
    return Outgoing(kept.speakers) if kept.speakers is not None and kept.speakers.runs else None


@dataclass(frozen=True, slots=True, eq=False)
class Connection:
    """A client's end of a session, until it leaves or another connection takes the session over."""

    session: LiveSession
    outbox: Outbox

    async def send(self, event: Event) -> None:
        """One event from the client. Raises `SessionTaken`."""
        await self.session.accept(event, self.outbox)

    def messages(self) -> AsyncIterator[Outgoing]:
        """What to send, until the session ends; then the error that ended it is raised, if one did."""
        return self.outbox.messages()
