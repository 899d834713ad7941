"""One live session: feeds a `LiveMachine` with what its client sends, and performs the actions that it returns.

The machine decides; this module submits its requests to the engine, brings the results back to it, and puts messages
into the outbox of the present connection. Everything runs on the event loop: between two `await`s nothing else changes
the session. One task empties the inbox, so the order of events holds over a change of connections.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from loguru import logger

from asr_server.audio.vad import SpeechProbability
from asr_server.core.audio import SAMPLE_RATE, samples_to_s
from asr_server.core.errors import AsrError, InvalidInput
from asr_server.live.inbox import (
    ArrivalTimes,
    Disconnected,
    Inbox,
    Incoming,
    RefusedAction,
    SendingPace,
    began_before_reopening_s,
)
from asr_server.live.inference import FinalWordTimes, LiveInference
from asr_server.live.machine.cutting import SLICE_BYTES, pieces
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
    UtteranceEnded,
)
from asr_server.live.machine.session import LiveMachine
from asr_server.live.machine.table import State
from asr_server.live.machine.utterance import Frame, LiveMachineConfig
from asr_server.live.options import LiveSessionOptions, Shared
from asr_server.live.outbox import Message, Outbox, Outgoing, PartMessage, TextDetails, missed
from asr_server.live.session_stats import SessionOutcome, SessionStats
from asr_server.net.loop_time import own_turn
from asr_server.net.shared_bytes import PIECE_BYTES
from asr_server.schedule.admission import AdmissionTicket
from asr_server.schedule.job import Priority

_SAMPLE_BYTES = 4  # once in frames
_BACKLOG_SAMPLES = 120 * SAMPLE_RATE  # of ended utterances without a final, before no more audio is processed
_ESTIMATE_S = 2.0  # that an estimate of the end of a turn is waited for; the first one may load the model
_FINALS_KEPT = 256  # a client misses at most what was on its way when the connection broke


@dataclass(frozen=True, slots=True, eq=False)
class LiveConnection:
    """A client's end of a session, until it leaves or another connection takes the session over."""

    session: LiveSession
    outbox: Outbox

    async def send(self, event: Event | RefusedAction | Disconnected) -> None:
        """Give the session an event from the client. Raises `session_taken`."""
        await self.session.accept(event, self.outbox)

    def messages(self) -> AsyncIterator[Outgoing]:
        """Yield what to send, until the session ends; then the error that ended it is raised, if one did."""
        return self.outbox.messages()


class LiveSession:
    """Made by `LiveSessions`; clients reach it through a `LiveConnection`."""

    def __init__(
        self,
        identity: str,
        options: LiveSessionOptions,
        config: LiveMachineConfig,
        shared: Shared,
        ticket: AdmissionTicket,
    ) -> None:
        """`ticket` is the session's place in the admission."""
        engines = shared.engines
        self.id = identity
        self.input_rate_hz = config.input_rate_hz
        self.detached = asyncio.Event()  # set while no connection has the session
        self.received_bytes = self.received_actions = 0
        began_s = time.monotonic()
        if options.reopened:
            began_s = began_before_reopening_s(samples_to_s(config.max_utterance_samples))
        self._pace = SendingPace(2 * self.input_rate_hz, began_s)
        self.rules = config.rules  # as last configured, also while that still waits in the inbox
        self.ended = False  # nobody can resume it
        self.machine = LiveMachine(replace(config, on_frame=self._on_frame))
        self._speech = SpeechProbability()
        self._shared, self._ticket = shared, ticket
        self._share = shared.memory.share()
        self._inbox, self._outbox = Inbox(shared.memory), Outbox()
        self._arrivals = ArrivalTimes()
        self.stats = SessionStats(engines.metrics, lambda end: self._arrivals.lag_ms(end) / 1000)
        self._finals: deque[Outgoing] = deque(maxlen=_FINALS_KEPT)
        self._inference = LiveInference(engines, identity, shared.timeout_s)
        self._requests: dict[int, asyncio.Task[TranscribeResult]] = {}
        self._tells_turns = options.turn_events
        self._estimates: set[asyncio.Task[float | None]] = set()
        self._word_times = FinalWordTimes(engines.of, options.words, self._send)
        # The machine has changed. Whoever waits clears it before, and then checks what it waits for.
        self._machine_changed = asyncio.Event()
        # In the order in which a message passes them.
        self.parts = [part.make(identity, self.send) for part in options.parts]
        with logger.contextualize(session=self.log_name):
            self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._on_run_done)

    @property
    def log_name(self) -> str:
        """The part of the id that may be logged: who knows all of it may resume the session."""
        return self.id.partition(".")[0]

    # -- connections -------------------------------------------------------------------------------------------------

    def connect(self, received: int = 0) -> LiveConnection:
        """Return a new connection: it gets the finals after utterance `received` and the details of those before, then
        the open utterance as it stands. The connection before ends with `session_taken`.
        """
        # Nothing here waits, so that no message falls between the old outbox and the new one, or is in both.
        self._outbox.close(InvalidInput(code="session_taken"))
        self._outbox = Outbox([lacked for kept in self._finals if (lacked := missed(kept, received)) is not None])
        self.detached.clear()
        if (partial := self.machine.current_partial) is not None:
            self._send(partial, self._arrivals.lag_ms(partial.end_samples))
        return LiveConnection(self, self._outbox)

    def is_current(self, outbox: Outbox) -> bool:
        return self._outbox is outbox

    async def accept(self, event: Event | RefusedAction | Disconnected, outbox: Outbox) -> None:
        """Take an event from the connection with this outbox. Waits while too much waits to be processed.

        Raises `session_taken`, also when another connection took the session during the wait: that one was sent how
        many bytes had arrived, and its client sends the rest again. Counting these bytes too would double them.
        Raises `Overloaded`, and takes nothing of a large frame, while sessions hold too much.
        """
        if not isinstance(event, Audio) or len(event.pcm) <= PIECE_BYTES:
            await self._take(event, outbox)
            return
        with self._shared.memory.in_hand(len(event.pcm)):
            for piece in pieces(event.pcm, PIECE_BYTES):
                await self._take(Audio(piece), outbox)

    async def _take(self, event: Event | RefusedAction | Disconnected, outbox: Outbox) -> None:
        if self.is_current(outbox):
            await self._inbox.wait_for_room(event)
        # Looked at again after the wait, and nothing waits from here on: what is counted is in the inbox.
        if not self.is_current(outbox):
            raise InvalidInput(code="session_taken")
        if isinstance(event, Audio):
            self.received_bytes += len(event.pcm)
        elif not isinstance(event, Disconnected):
            self.received_actions += 1
        if isinstance(event, Configure):
            self.rules = event.rules
        self._inbox.put(event)
        if len(self._inbox) > 1:  # otherwise the session's task processes it next, and accounts after that
            self._account()

    def _account(self) -> None:
        """Tell the others what this session holds, and how much audio waits here for an answer."""
        backlog = self.machine.backlog_samples
        self._share.set(self._inbox.size_bytes + _SAMPLE_BYTES * backlog + self._outbox.waiting_bytes)
        unanswered_s = samples_to_s(backlog + self.machine.shown_samples)
        self._ticket.seconds = self._inbox.audio_bytes / (2 * self.input_rate_hz) + unanswered_s

    def disconnect(self, *, clean: bool) -> None:
        """The connection is gone; what it had sent is processed first."""
        self.stats.on_disconnect(clean=clean)
        # The end goes through the inbox and not to the machine: audio that arrived before would follow the flush.
        self._outbox.close()
        self._inbox.put(Disconnected(clean))
        self.detached.set()

    async def finish(self) -> None:
        """End the open utterance. Returns when its final is in the outbox, with its word times."""
        self._inbox.put(Close())
        # The task may have ended by a fault, which sets `_machine_changed` too, and closes nothing in the machine.
        while not self._task.done() and (self._inbox or self.machine.state is not State.CLOSED or self.machine.busy):
            await self._next_change()
        await self._word_times.wait()

    def end(self, error: AsrError | None = None) -> None:
        """Cancel whatever is under way, and end the connection, with the error if there is one."""
        # Callbacks look at it, also those of tasks that were done before: the machine gets no event any more.
        self.ended = True
        self._task.cancel()
        self._word_times.close()
        for part in self.parts:
            part.close()
        self._machine_changed.set()  # for `finish`, which would wait for a final that does not come
        for task in (*self._requests.values(), *self._estimates):
            task.cancel()
        self._outbox.close(error)
        self._inbox.clear()
        self._share.set(0)
        self._ticket.seconds = 0.0

    # -- events: from the inbox and from the engine to the machine ---------------------------------------------------

    async def _run(self) -> None:
        """Process the inbox, for the life of the session."""
        while True:
            await self._process(await self._inbox.first())
            # Only now: what is being processed still takes room, or a client could have twice as much under way.
            self._inbox.remove_first()
            self._account()
            self._machine_changed.set()  # `finish` waits for the inbox too

    async def _process(self, incoming: Incoming) -> None:
        if self.machine.state is State.CLOSED:
            return  # nothing of it is answered: its client sends it again in a new session
        match incoming.event:
            case Audio(pcm=pcm):
                await self._process_audio(pcm, incoming.arrived_s)
            case Disconnected(clean=clean):
                is_open = self.machine.state not in (State.LISTENING, State.CLOSED)
                event = Flush() if clean and is_open else Interrupted()
                self._feed(event, await self._frames(event))
            case RefusedAction():
                pass
            case event:
                self._feed(event, await self._frames(event))

    async def _process_audio(self, pcm: bytes, arrived_s: float) -> None:
        memory = self._shared.memory
        for piece in pieces(pcm, SLICE_BYTES):
            while self.machine.backlog_samples > min(_BACKLOG_SAMPLES, memory.queue_bytes // _SAMPLE_BYTES):
                await self._next_change()
            audio, priority = Audio(piece), self._priority
            if priority.is_live:
                await self._process_slice(audio, arrived_s)
                continue
            # What comes faster than speech takes no more of the loop than its caller has, also when the client is gone.
            await own_turn()
            # Held while it sleeps: sessions of this priority take turns, and together have half of the time at most.
            async with self._shared.paces[priority]:
                began_s = time.monotonic()
                await self._process_slice(audio, arrived_s)
                await asyncio.sleep(time.monotonic() - began_s)
                # What nobody listens to is transcribed one after the other, so that it does not fill the batch.
                while self._priority is Priority.BULK and self.machine.busy and not self.ended:
                    await self._next_change()

    async def _process_slice(self, audio: Audio, arrived_s: float) -> None:
        # The wait is before the machine gets the audio: its actions would wait, and those of a result overtake them.
        frames = await self._frames(audio)
        actions = self.machine.receive(audio, frames)
        # Before the actions: their lag is counted from here.
        self._arrivals.add(self.machine.clock_samples, arrived_s)
        self._perform(actions)
        if self._estimates:
            # Audio that comes faster than speech would end the pause before its estimate is there. At the pace of
            # speech there is time: the next audio of a pause is silence.
            await asyncio.wait(self._estimates, timeout=_ESTIMATE_S)

    async def _frames(self, event: Event) -> list[Frame]:
        if isinstance(event, Reset):
            self._speech = SpeechProbability()
        return await self._shared.detector.frames(self.machine, self._speech, event)

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
        """Send a message as the parts show it, if they do."""
        for part in self.parts:
            if (shown := part.shown(message)) is None:
                return
            message = shown
        outgoing = self._complete(Outgoing(message, lag_ms))
        if isinstance(message, Final):
            self._finals.append(outgoing)
            self._word_times.on_final(message)
        self._outbox.put(outgoing)

    def send(self, message: PartMessage) -> None:
        """Send a message that a part makes at its own time."""
        outgoing = self._complete(Outgoing(message))
        if isinstance(details := outgoing.message, TextDetails):
            for place, kept in enumerate(self._finals):
                if isinstance(kept.message, Final) and kept.message.utterance == details.utterance:
                    self._finals[place] = replace(kept, details=details)
        self._outbox.put(outgoing)

    def _complete(self, outgoing: Outgoing) -> Outgoing:
        for part in self.parts:
            outgoing = part.completed(outgoing)
        return outgoing

    def _estimate(self, request: EstimateEndOfTurn) -> None:
        assert self._shared.end_of_turn is not None, "only rules that need it ask for it"
        task = asyncio.create_task(self._shared.end_of_turn.probability(request.audio))
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
        priority = self._priority
        if priority.is_live and request.kind is ResultKind.FINAL:
            priority = Priority.FINAL
        task = asyncio.create_task(self._inference.transcribe(request, priority))
        # The loop itself holds a task only weakly. Its callback runs later, so that no result comes in the middle of
        # the actions that are being performed.
        self._requests[request.ticket] = task
        task.add_done_callback(functools.partial(self._on_request_done, request.ticket))

    @property
    def _priority(self) -> Priority:
        """Return the priority of partials.

        A speaker goes first. A recording that comes faster than it is spoken has the same right as one in a file, and
        gives way to others when its client is gone.
        """
        if self._pace.is_spoken(self.received_bytes):
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
