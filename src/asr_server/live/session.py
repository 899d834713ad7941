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
from collections.abc import Sequence
from dataclasses import replace

from loguru import logger

from asr_server.core.audio import SAMPLE_RATE, samples_to_s
from asr_server.core.errors import AsrError, SessionTaken
from asr_server.features.handover.handover import ContinuationIssued, MoveRequested, SessionHandover, SpeakersRestarted
from asr_server.features.speakers.live_labels import SpeakerLabels, SpeakersLost, UtteranceSpeakers
from asr_server.features.speakers.session_speakers import SessionSpeakers
from asr_server.live.arrival_times import ArrivalTimes
from asr_server.live.connection import Connection
from asr_server.live.final_words import FinalWordTimes, WordTimestamps
from asr_server.live.inbox import Disconnected, Inbox, Incoming, RefusedAction
from asr_server.live.inference import LiveInference
from asr_server.live.machine.config import LiveMachineConfig
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
    ResetDone,
    ResultKind,
    Transcribe,
    TranscribeFailed,
    TranscribeResult,
    UtteranceEnded,
)
from asr_server.live.machine.session import LiveMachine
from asr_server.live.machine.table import State
from asr_server.live.machine.utterance import Frame
from asr_server.live.options import LiveSessionOptions, Shared
from asr_server.live.outbox import Message, Outbox, Outgoing, missed
from asr_server.live.sending_pace import SendingPace, began_before_moving_s
from asr_server.live.session_stats import SessionOutcome, SessionStats
from asr_server.live.voice_detection import VoiceDetector
from asr_server.net.shared_bytes import PIECE_BYTES
from asr_server.net.slices import turns
from asr_server.schedule.admission import AdmissionTicket
from asr_server.schedule.job import Priority

_SLICE_BYTES = 4 * 1024  # 128 ms at 16 kHz
_SAMPLE_BYTES = 4  # once in frames
_BACKLOG_SAMPLES = 120 * SAMPLE_RATE  # of ended utterances without a final, before no more audio is processed
_ESTIMATE_S = 2.0  # that an estimate of the end of a turn is waited for; the first one may load the model
_FINALS_KEPT = 256  # a client misses at most what was on its way when the connection broke


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
        self.received_bytes = self.received_actions = 0
        self.handover: SessionHandover | None = None
        began_s = time.monotonic()
        if options.handover is not None:
            self.handover = SessionHandover(identity, options.handover, config.input_rate_hz)
            self.received_bytes = self.handover.begin.received_bytes
            self.received_actions = self.handover.begin.actions
            if self.handover.is_continued:
                began_s = began_before_moving_s(samples_to_s(config.max_utterance_samples))
        self._began_bytes = self.received_bytes
        self._pace = SendingPace(2 * self.input_rate_hz, began_s if options.began_s is None else options.began_s)
        self.rules = config.rules  # as last configured, also while that still waits in the inbox
        self.ended = False  # nobody can resume it
        self.speakers: SessionSpeakers | None = None
        if options.speakers and shared.speakers is not None:
            labels = SpeakerLabels(options.first_speaker)
            self.speakers = SessionSpeakers(
                shared.speakers, labels, self._send_speakers, shared.voices_of(options.owner)
            )
            config = replace(config, on_samples=self.speakers.hear)
        self.machine, self._detector = LiveMachine(config), VoiceDetector(shared.detection)
        self._shared, self._ticket = shared, ticket
        self._share = shared.memory.share()
        self._inbox, self._outbox = Inbox(shared.memory), Outbox()
        self._arrivals = ArrivalTimes()
        self.stats = SessionStats(engines.observer, lambda end: self._arrivals.lag_ms(end) / 1000)
        self._finals: deque[Outgoing] = deque(maxlen=_FINALS_KEPT)
        self._inference = LiveInference(engines, identity, shared.timeout_s)
        self._requests: dict[int, asyncio.Task[TranscribeResult]] = {}
        self._tells_turns = options.turn_events
        self._estimates: set[asyncio.Task[float | None]] = set()
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

    def connect(self, received: int | None = None) -> Connection:
        """A new connection: it gets the finals after utterance `received` and the labels of those before, then the open
        utterance as it stands. The one before ends with `SessionTaken`. `received`: None for the first connection.
        """
        self._outbox.close(SessionTaken("The session goes on over another connection."))
        has = (received or 0) - (self.handover.begin.utterances if self.handover is not None else 0)
        self._outbox = Outbox([lacked for kept in self._finals if (lacked := missed(kept, has)) is not None])
        self.detached.clear()
        self._ticket.left = False
        if (partial := self.machine.current_partial) is not None:
            self._send(partial, self._arrivals.lag_ms(partial.end_samples))
        if self.handover is not None and received is not None:
            self._outbox.put(Outgoing(ContinuationIssued(self.handover.continuation(self.machine))))
        elif self.handover is not None and self.handover.is_continued and self.speakers is not None:
            self._outbox.put(Outgoing(SpeakersRestarted()))
        return Connection(self, self._outbox, received is None)

    async def ask_to_move(self, within_s: float) -> None:
        """Ask the client to go on with another server, once its word times are sent, or half of the time has passed."""
        assert self.handover is not None, "only sessions whose client asked for it can move"
        await self._word_times.wait(within_s / 2)
        self._outbox.put(Outgoing(MoveRequested(self.handover.continuation(self.machine), within_s)))

    def is_current(self, outbox: Outbox) -> bool:
        """Whether this outbox is that of the present connection."""
        return self._outbox is outbox

    async def accept(self, event: Event | RefusedAction, outbox: Outbox) -> None:
        """Take an event from the connection with this outbox. Waits while too much waits to be processed.

        Raises `SessionTaken`, also when another connection took the session during the wait: that one was told how
        many bytes had arrived, and its client sends the rest again. Counting these bytes too would double them.
        Raises `Overloaded`, and takes nothing of a large frame, while sessions hold too much.
        """
        if not isinstance(event, Audio) or len(event.pcm) <= PIECE_BYTES:
            await self._take(event, outbox)
            return
        with self._shared.memory.in_hand(len(event.pcm)):
            for at in range(0, len(event.pcm), PIECE_BYTES):
                await self._take(Audio(event.pcm[at : at + PIECE_BYTES]), outbox)

    async def _take(self, event: Event | RefusedAction, outbox: Outbox) -> None:
        if self.is_current(outbox):
            await self._inbox.wait_for_room(event)
        if not self.is_current(outbox):
            raise SessionTaken("The session goes on over another connection.")
        if isinstance(event, Audio):
            self.received_bytes += len(event.pcm)
        else:
            self.received_actions += 1
        if isinstance(event, Configure):
            self.rules = event.rules
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
            self._inbox.remove_first()
            self._account()
            self._machine_changed.set()  # `finish` waits for the inbox too

    async def _process(self, incoming: Incoming) -> None:
        if self.machine.state is State.CLOSED:
            # Nothing of it is answered, so that its client knows that it has to go to another server. It counts neither
            # as audio nor as an action.
            return
        match incoming.event:
            case Audio(pcm=pcm):
                await self._process_audio(pcm, incoming.arrived_s)
            case Disconnected(clean=clean):
                is_open = self.machine.state not in (State.LISTENING, State.CLOSED)
                event = Flush() if clean and is_open else Interrupted()
                self._feed(event, await self._detector.frames(self.machine, event))
            case RefusedAction():
                self._report([], None, counted=True)
            case event:
                frames = await self._detector.frames(self.machine, event)
                self._feed(event, frames, counted=not isinstance(event, Close))

    async def _process_audio(self, pcm: bytes, arrived_s: float) -> None:
        memory = self._shared.memory
        for at in range(0, len(pcm), _SLICE_BYTES):
            while self.machine.backlog_samples > min(_BACKLOG_SAMPLES, memory.queue_bytes // _SAMPLE_BYTES):
                await self._next_change()
            piece, priority = Audio(pcm[at : at + _SLICE_BYTES]), self._priority
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

    async def _process_slice(self, audio: Audio, arrived_s: float) -> None:
        frames = await self._detector.frames(self.machine, audio)
        await turns().next()
        actions = self.machine.receive(audio, frames)
        # Before the actions: their lag is counted from here.
        self._arrivals.add(self.machine.clock_samples, arrived_s)
        if self.handover is not None:
            self.handover.points.on_audio(len(audio.pcm))
        self._perform(actions)
        self._report(actions, None)
        if self._estimates:
            # Audio that comes faster than speech would end the pause before its estimate is there. At the pace of
            # speech there is time: the next audio of a pause is silence.
            await asyncio.wait(self._estimates, timeout=_ESTIMATE_S)

    async def _next_change(self) -> None:
        self._machine_changed.clear()
        await self._machine_changed.wait()

    def _feed(self, event: Event, frames: Sequence[Frame] = (), *, counted: bool = False) -> None:
        """`counted`: it is an action of the client's."""
        actions = self.machine.receive(event, frames)
        self._perform(actions)
        self._report(actions, event, counted=counted)

    def _report(self, actions: Sequence[Action], event: Event | None, *, counted: bool = False) -> None:
        """Tell the client from where another server can go on now."""
        if self.handover is not None:
            continuation = self.handover.on_processed(actions, event, self.machine, counted=counted)
            if continuation is not None:
                self._outbox.put(Outgoing(ContinuationIssued(continuation)))

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

    def _send(self, message: Message, lag_ms: int) -> None:
        """A message of the machine's, if the client lacks it."""
        shown = message if self.handover is None else self.handover.shown(message)
        if shown is None:
            return
        outgoing = self._labelled(Outgoing(shown, lag_ms))
        if isinstance(shown, Final):
            self._finals.append(outgoing)
            self._word_times.on_final(shown)
        self._put(outgoing)

    def _put(self, outgoing: Outgoing) -> None:
        """A message that may have letters of speakers. The client first learns which letters others must not give."""
        if self.handover is not None and (relabelled := self.handover.relabelled()) is not None:
            self._outbox.put(Outgoing(ContinuationIssued(relabelled)))
        self._outbox.put(outgoing)

    def _labelled(self, outgoing: Outgoing) -> Outgoing:
        """The message; a text with its speakers, where they are told apart."""
        match outgoing.message:
            case Partial() | Final() as text if self.speakers is not None:
                speakers = self.speakers.labels.on_text(text)
                if self.handover is not None:
                    committed = text.text if isinstance(text, Final) else text.committed
                    speakers = self.handover.labelled(speakers, committed)
                return replace(outgoing, speakers=speakers)
            case ResetDone(utterance=int(discarded)) if self.speakers is not None:
                self.speakers.labels.discard(discarded)
        return outgoing

    def _send_speakers(self, message: UtteranceSpeakers | SpeakersLost) -> None:
        if isinstance(message, UtteranceSpeakers):
            if self.handover is not None:
                message = self.handover.labelled(message)
            for place, kept in enumerate(self._finals):
                if isinstance(kept.message, Final) and kept.message.utterance == message.utterance:
                    self._finals[place] = replace(kept, speakers=message)
        self._put(Outgoing(message))

    def _send_words(self, timed: WordTimestamps) -> None:
        self._outbox.put(Outgoing(self.speakers.labels.on_words(timed) if self.speakers is not None else timed))

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
        self._requests[request.ticket] = task
        task.add_done_callback(functools.partial(self._on_request_done, request.ticket))

    @property
    def _priority(self) -> Priority:
        """Of partials. A speaker goes first. A recording that comes faster than it is spoken has the same right as one
        in a file, and gives way to others when its client is gone."""
        if self._pace.is_spoken(self.received_bytes - self._began_bytes):
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
