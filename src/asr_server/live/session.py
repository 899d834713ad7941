"""One live session: feeds a `LiveMachine` with the client's events and performs the actions that it returns.

The machine decides. This module submits its requests to the engine, returns the results to it, and puts messages into
the outbox of the current connection. Everything runs on the event loop, so nothing else changes the session between two
`await`s. One task empties the inbox, so events stay in order when the connection changes.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from loguru import logger

from asr_server.audio.segmentation import SpeechProbability
from asr_server.core.audio import SAMPLE_RATE, samples_to_s
from asr_server.core.errors import AsrError, InvalidInput
from asr_server.live.inbox import PIECE_BYTES, ArrivalTimes, Disconnected, Inbox, Incoming, RefusedAction, SharedBytes
from asr_server.live.inference import Engines, FinalWordTimes, LiveInference
from asr_server.live.machine.events import (
    Action,
    Audio,
    CancelRequest,
    Close,
    Configure,
    EndOfTurnEstimated,
    EndOfTurnLikely,
    EstimateEndOfTurn,
    Event,
    Final,
    Flush,
    Interrupted,
    Partial,
    Reset,
    ResultKind,
    Transcribe,
    TranscribeFailed,
    TranscribeResult,
    TurnConfig,
    UtteranceEnded,
)
from asr_server.live.machine.framing import SLICE_BYTES, pieces
from asr_server.live.machine.session import LiveMachine
from asr_server.live.machine.table import State
from asr_server.live.machine.utterance import Frame, LiveMachineConfig
from asr_server.live.outbox import MakePart, Message, Outbox, Outgoing, PartMessage, TextDetails, missed
from asr_server.live.session_stats import SessionOutcome, SessionStats
from asr_server.live.speech_detection import EndOfTurnEstimator, VoiceDetector
from asr_server.net.access import Place
from asr_server.net.loop_time import own_turn
from asr_server.processes.caller_work import FairShares, current_caller
from asr_server.recordings.requests import WordTimes
from asr_server.schedule.admission import AdmissionTicket
from asr_server.schedule.job import Priority

_SAMPLE_BYTES = 4  # in frames
_BACKLOG_SAMPLES = 120 * SAMPLE_RATE  # of ended utterances without a final, above which no audio is processed
_ESTIMATE_S = 2.0  # the longest wait for an estimate of the end of a turn; the first one may load the model
# A client this far ahead of real time is uploading a recording, not speaking.
_AHEAD_S = 10.0
_REOPENED_S = 10.0  # of audio that a client may record before it reaches the server of its new session
_FINALS_KEPT = 256  # for a client that resumes; it misses only what was in transit


@dataclass(frozen=True, slots=True)
class LiveSessionOptions:
    """The options with which a session begins."""

    rules: TurnConfig
    input_rate_hz: int = SAMPLE_RATE
    words: WordTimes = WordTimes.NONE  # how the words of finals get their times
    owner: str = ""  # the owner of the key, "" without keys
    place: Place | None = None  # a slot of the caller's quota, kept while the session waits for its client
    reopened: Literal["pause", "speech"] | None = None  # begins there, with audio of a lost session
    turn_events: bool = False  # notify the client when a turn has probably ended
    parts: tuple[MakePart, ...] = ()  # in the order in which they process a message


@dataclass(frozen=True, slots=True)
class Shared:
    """The resources that all sessions of the process share."""

    engines: Engines
    timeout_s: float  # limit of each answer of an engine
    end_of_turn: EndOfTurnEstimator | None = None  # None if the end of a turn is not estimated
    memory: SharedBytes = field(default_factory=SharedBytes)
    detector: VoiceDetector = field(default_factory=VoiceDetector)
    # The turns of sessions that send faster than real time, by priority: one for each slice of audio. Such sessions
    # together use at most half of the time.
    paces: Mapping[Priority, FairShares] = field(
        default_factory=lambda: {Priority.INTERACTIVE: FairShares(1, 1), Priority.BULK: FairShares(1, 1)}
    )


class LiveConnection(Outbox):
    """A client's connection to a session, until the client leaves or another connection takes the session over."""

    def __init__(self, session: LiveSession, lacked: Iterable[Outgoing] = ()) -> None:
        super().__init__(lacked)
        self.session = session

    async def send(self, event: Event | RefusedAction) -> None:
        """Give the session an event of the client. Waits while the session's inbox is full.

        Raises `session_taken`, also if another connection took the session during the wait. The new connection was sent
        the number of received bytes and its client sends the rest again, so counting these bytes would double them.
        Raises `Overloaded`, and takes nothing of a large frame, while sessions hold too many bytes.
        """
        if not isinstance(event, Audio) or len(event.pcm) <= PIECE_BYTES:
            await self.session.take(event, self)
            return
        with self.session.shared.memory.in_hand(len(event.pcm)):
            for piece in pieces(event.pcm, PIECE_BYTES):
                await self.session.take(Audio(piece), self)


class LiveSession:
    """A session of `LiveSessions`. Clients reach it through a `LiveConnection`."""

    def __init__(
        self,
        identity: str,
        options: LiveSessionOptions,
        config: LiveMachineConfig,
        shared: Shared,
        ticket: AdmissionTicket,
    ) -> None:
        """`ticket`: the session's admission."""
        engines = shared.engines
        self.id = identity
        self.input_rate_hz = config.input_rate_hz  # as last configured, like `rules`
        self.detached = asyncio.Event()  # set while no connection has the session
        self.received_bytes = self.received_actions = 0
        self._received_s = self._processed_s = 0.0  # seconds of audio, whose rate may change
        self._began_s = time.monotonic()
        if options.reopened:  # its client sends the audio of a lost session again
            self._began_s -= _REOPENED_S + samples_to_s(config.max_utterance_samples)
        self.rules = config.rules  # as last configured, even while that event waits in the inbox
        self.ended = False  # if True, nobody can resume it
        self.machine = LiveMachine(replace(config, on_frame=self._on_frame))
        self._speech = SpeechProbability()
        self.shared, self._ticket = shared, ticket
        self.inbox, self._connection = Inbox(shared.memory), LiveConnection(self)
        self._arrivals = ArrivalTimes()
        self.stats = SessionStats(engines.metrics, lambda end: self._arrivals.lag_ms(end) / 1000)
        self._finals: deque[Outgoing] = deque(maxlen=_FINALS_KEPT)
        self._inference = LiveInference(engines, identity, shared.timeout_s)
        self._requests: dict[int, asyncio.Task[TranscribeResult]] = {}
        self._tells_turns = options.turn_events
        self._estimates: set[asyncio.Task[float | None]] = set()
        self._word_times = FinalWordTimes(engines.of, options.words, self._send)
        # Set when the machine changes. A waiter clears it, waits, and then checks its own condition.
        self._machine_changed = asyncio.Event()
        # In the order in which they process a message.
        self.parts = [make(identity, self.send) for make in options.parts]
        with logger.contextualize(session=self.log_name):
            self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._on_run_done)

    @property
    def log_name(self) -> str:
        """The part of the id that may be logged: the whole id lets a client resume the session."""
        return self.id.partition(".")[0]

    # -- connections -------------------------------------------------------------------------------------------------

    def connect(self, received: int = 0) -> LiveConnection:
        """Return a new connection, and end the previous one with `session_taken`.

        The new one gets the finals after utterance `received`, the details of earlier finals, and the current text of
        the open utterance.
        """
        # Nothing is awaited here, so every message is in exactly one of the two outboxes.
        self._connection.close(InvalidInput(code="session_taken"))
        lacked = [lack for kept in self._finals if (lack := missed(kept, received)) is not None]
        connection = self._connection = LiveConnection(self, lacked)
        self.detached.clear()
        if (partial := self.machine.current_partial) is not None:
            self._send(partial, self._arrivals.lag_ms(partial.end_samples))
        return connection

    def is_current(self, connection: LiveConnection) -> bool:
        return self._connection is connection

    async def take(self, event: Event | RefusedAction, connection: LiveConnection) -> None:
        """Take an event from a connection, as described in its `send`."""
        if self.is_current(connection):
            await self.inbox.wait_for_room(event)
        # Checked again after the wait. Nothing is awaited from here on, so every counted byte is in the inbox.
        if not self.is_current(connection):
            raise InvalidInput(code="session_taken")
        if isinstance(event, Audio):
            self.received_bytes += len(event.pcm)
            self._received_s += _seconds(event, self.input_rate_hz)
        else:
            self.received_actions += 1
        if isinstance(event, Configure):
            self.rules = event.rules
            self.input_rate_hz = event.input_rate_hz or self.input_rate_hz
        self.inbox.put(event)
        if len(self.inbox) > 1:  # otherwise the session's task processes it next and then calls `_account`
            self._account()

    def _account(self) -> None:
        """Update the bytes that this session holds and the seconds of audio that wait for an answer."""
        backlog = self.machine.backlog_samples
        held_bytes = self.inbox.size_bytes + _SAMPLE_BYTES * backlog + self._connection.waiting_bytes
        self.shared.memory.hold(self, held_bytes)
        waiting_s = self._received_s - self._processed_s if self.inbox else 0.0
        self._ticket.seconds = waiting_s + samples_to_s(backlog + self.machine.shown_samples)

    def disconnect(self, *, clean: bool) -> None:
        """Note that the connection is gone. Received events are processed first."""
        self.stats.on_disconnect(clean=clean)
        # Put into the inbox, so that it follows the audio that arrived before.
        self._connection.close()
        self.inbox.put(Disconnected(clean))
        self.detached.set()

    async def finish(self) -> None:
        """End the open utterance. Return when its final and its word times are in the outbox."""
        self.inbox.put(Close())
        # The task may have failed, which also sets `_machine_changed` and leaves the machine open.
        while not self._task.done() and (self.inbox or self.machine.state is not State.CLOSED or self.machine.busy):
            await self._next_change()
        await self._word_times.wait()

    def end(self, error: AsrError | None = None) -> None:
        """Cancel all work and end the connection, with the error if there is one."""
        # Checked by callbacks, also of tasks that are already done, so that the machine gets no more events.
        self.ended = True
        self._task.cancel()
        self._word_times.close()
        for part in self.parts:
            part.close()
        self._machine_changed.set()  # wakes `finish`, whose final will not come
        for task in (*self._requests.values(), *self._estimates):
            task.cancel()
        self._connection.close(error)
        self.inbox.clear()
        self.shared.memory.hold(self, 0)
        self._ticket.seconds = 0.0

    # -- events: from the inbox and from the engine to the machine ---------------------------------------------------

    async def _run(self) -> None:
        while True:
            incoming = await self.inbox.first()
            await self._process(incoming)
            if isinstance(incoming.event, Audio):
                self._processed_s += _seconds(incoming.event, self.machine.input_rate_hz)
            # Only now: an event counts until it is processed, or a client could have twice as much in progress.
            self.inbox.remove_first()
            self._account()
            self._machine_changed.set()  # `finish` waits for the inbox too

    async def _process(self, incoming: Incoming) -> None:
        if self.machine.state is State.CLOSED:
            return  # the client sends it again in a new session
        match incoming.event:
            case Audio(pcm=pcm):
                await self._process_audio(pcm, incoming.arrived_s)
            case Disconnected(clean=clean):
                event = Flush() if clean and self.machine.state is not State.LISTENING else Interrupted()
                self._feed(event, await self._frames(event))
            case RefusedAction():
                pass
            case event:
                self._feed(event, await self._frames(event))

    async def _process_audio(self, pcm: bytes, arrived_s: float) -> None:
        memory = self.shared.memory
        for piece in pieces(pcm, SLICE_BYTES):
            while self.machine.backlog_samples > min(_BACKLOG_SAMPLES, memory.queue_bytes // _SAMPLE_BYTES):
                await self._next_change()
            audio, priority = Audio(piece), self.priority
            if priority.is_live:
                await self._process_slice(audio, arrived_s)
                continue
            # Audio faster than real time uses only its caller's share of the loop, also after the client has left.
            await own_turn()
            # Held while it sleeps: sessions of this priority take turns and together use at most half of the time.
            async with self.shared.paces[priority].taken(current_caller.get()):
                began_s = time.monotonic()
                await self._process_slice(audio, arrived_s)
                await asyncio.sleep(time.monotonic() - began_s)
                # A session without a client has one request at a time, so that it does not fill the batch.
                while self.priority is Priority.BULK and self.machine.busy and not self.ended:
                    await self._next_change()

    async def _process_slice(self, audio: Audio, arrived_s: float) -> None:
        # Awaited before the machine gets the audio: afterwards, a result's actions could overtake the audio's.
        frames = await self._frames(audio)
        actions = self.machine.receive(audio, frames)
        # Before the actions, whose lag is counted from this arrival time.
        self._arrivals.add(self.machine.clock_samples, arrived_s)
        self._perform(actions)
        if self._estimates:
            # Audio faster than real time would end the pause before its estimate arrives. In real time there is enough
            # time: the next audio of a pause is silence.
            await asyncio.wait(self._estimates, timeout=_ESTIMATE_S)

    async def _frames(self, event: Event) -> list[Frame]:
        if isinstance(event, Reset):
            self._speech = SpeechProbability()
        return await self.shared.detector.frames(self.machine, self._speech, event)

    async def _next_change(self) -> None:
        self._machine_changed.clear()
        await self._machine_changed.wait()

    def _feed(self, event: Event, frames: Sequence[Frame] = ()) -> None:
        self._perform(self.machine.receive(event, frames))

    def _on_frame(self, frame: Frame) -> None:
        for part in self.parts:
            part.on_frame(frame)

    def _on_run_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End the session with an error after a fault of the server, so that its client does not wait forever."""
        logger.opt(exception=error).error("live session failed", session=self.log_name)
        self.stats.outcome = SessionOutcome.FAILED
        self.end(AsrError("The server failed on this session; the log has the details."))

    # -- actions of the machine --------------------------------------------------------------------------------------

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Transcribe():
                    self._submit(action)
                case EstimateEndOfTurn():
                    self._estimate(action)
                case CancelRequest(ticket=ticket):
                    if ticket in self._requests:
                        self._requests[ticket].cancel()
                case _:
                    self.stats.count(action)
                    if not isinstance(action, EndOfTurnLikely) or self._tells_turns:
                        self._send(action, self._lag_ms(action))
        self._machine_changed.set()

    def _send(self, message: Message, lag_ms: int = 0) -> None:
        outgoing = self._complete(Outgoing(message, lag_ms))
        if isinstance(message, Final):
            self._finals.append(outgoing)
            self._word_times.on_final(message)
        self._connection.put(outgoing)

    def send(self, message: PartMessage) -> None:
        """Send a message of a part."""
        outgoing = self._complete(Outgoing(message))
        if isinstance(details := outgoing.message, TextDetails):
            for place, kept in enumerate(self._finals):
                if isinstance(kept.message, Final) and kept.message.utterance == details.utterance:
                    self._finals[place] = replace(kept, details=details)
        self._connection.put(outgoing)

    def _complete(self, outgoing: Outgoing) -> Outgoing:
        for part in self.parts:
            outgoing = part.completed(outgoing)
        return outgoing

    def _estimate(self, request: EstimateEndOfTurn) -> None:
        assert self.shared.end_of_turn is not None, "rules request estimates only if there is an estimator"
        task = asyncio.create_task(self.shared.end_of_turn.probability(request.audio))
        self._estimates.add(task)
        task.add_done_callback(functools.partial(self._on_estimated, request.position_samples))

    def _on_estimated(self, position_samples: int, task: asyncio.Task[float | None]) -> None:
        self._estimates.discard(task)
        if task.cancelled() or self.ended:
            return
        try:
            self._feed(EndOfTurnEstimated(position_samples, task.result()))
        except Exception as fault:  # asyncio would only log what a callback raises
            self._fail(fault)

    def _lag_ms(self, action: Action) -> int:
        if isinstance(action, Partial | Final | UtteranceEnded | EndOfTurnLikely):
            return self._arrivals.lag_ms(action.end_samples)
        return 0

    def _submit(self, request: Transcribe) -> None:
        self._word_times.on_request(request)
        priority = self.priority
        if priority.is_live and request.kind is ResultKind.FINAL:
            priority = Priority.FINAL
        task = asyncio.create_task(self._inference.transcribe(request, priority))
        # Kept, since the loop holds a task only weakly. Its callback runs in a later round, so that no result arrives
        # while the machine's actions are being performed.
        self._requests[request.ticket] = task
        task.add_done_callback(functools.partial(self._on_request_done, request.ticket))

    @property
    def priority(self) -> Priority:
        """The priority of partials.

        Live speech goes first. A recording sent faster than real time has the priority of an upload, and a lower one
        after its client has left.
        """
        if self._received_s - (time.monotonic() - self._began_s) <= _AHEAD_S:
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


def _seconds(audio: Audio, rate_hz: int) -> float:
    return len(audio.pcm) / (2 * rate_hz)
