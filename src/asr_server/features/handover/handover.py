"""A live session that another server may go on with, or that goes on with another's.

The machine of a session counts utterances and samples from its own beginning. The offsets turn its figures into those
of the client, where messages are rendered.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from asr_server.core.audio import SAMPLE_RATE, samples_to_s
from asr_server.core.transcript import SpeakerRun
from asr_server.features.handover.continuation import (
    Continuation,
    Offset,
    ShownUtterance,
    TurnSettings,
    read_frame,
    wire_message,
)
from asr_server.features.handover.shown_text import ShownSpeakers, ShownText
from asr_server.features.speakers.live_labels import UtteranceSpeakers
from asr_server.live.machine.events import (
    Action,
    Audio,
    Checkpoint,
    Close,
    Detection,
    Event,
    Final,
    Flush,
    GetCheckpoint,
    Partial,
    Reset,
    ResetDone,
    TurnConfig,
    UtteranceStarted,
)
from asr_server.live.machine.session import LiveMachine
from asr_server.live.options import Opening, PartRequest, PartSession, SessionPart
from asr_server.live.outbox import CHARACTER_BYTES, MESSAGE_BYTES, Message, Outgoing, PartMessage

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

EVERY_SAMPLES = 5 * SAMPLE_RATE  # of silence, between two points
EVERY_ACTIONS = 64  # in silence: what a client keeps of actions alone is bounded too
_ANCHORS_KEPT = 256


@dataclass(frozen=True, slots=True)
class HandoverPoint:
    """A place where another session goes on: bytes and actions of this input, samples and utterances of its output."""

    received_bytes: int
    actions: int
    samples: int
    utterances: int
    rules: TurnConfig
    in_speech: bool  # an utterance ended there in the middle of speech


@dataclass(frozen=True, slots=True)
class _Beginning:
    """The beginning of an utterance: its sample, the number of actions before it, and its rules."""

    samples: int
    actions: int
    rules: TurnConfig


class BytePositions:
    """Maps samples at 16 kHz to the bytes of the input that they were made from.

    Both run evenly, but for half a sample that a reset discards, and for what resampling rounds where a flush or a
    reset ends its stream. From there on they are counted afresh.
    """

    def __init__(self, input_rate_hz: int) -> None:
        self._rate_hz = input_rate_hz
        self._sample_began = 0  # a byte with which a sample began
        self._anchors: deque[tuple[int, int]] = deque([(0, 0)], maxlen=_ANCHORS_KEPT)  # samples, bytes

    def on_stream_end(self, samples: int, received_bytes: int, *, discards_half: bool) -> None:
        """Note the end of a stream: all whole samples of the input are counted now."""
        half = (received_bytes - self._sample_began) % 2
        if discards_half:
            self._sample_began = received_bytes
        else:
            received_bytes -= half
        if self.of(samples) != received_bytes:
            self._anchors.append((samples, received_bytes))

    def of(self, samples: int) -> int | None:
        """Return the byte of a sample, or None for a place that is no longer known."""
        for at, received_bytes in reversed(self._anchors):
            if at <= samples:
                return received_bytes + 2 * round((samples - at) * self._rate_hz / SAMPLE_RATE)
        return None


class HandoverPoints:
    """Finds the points of one session. Its methods are called for each event, in order, after it was processed."""

    def __init__(self, input_rate_hz: int) -> None:
        self.received_bytes = self.actions = 0  # processed
        self._positions = BytePositions(input_rate_hz)
        self._began: dict[int, _Beginning] = {}  # of the utterances without a final
        self._due_samples, self._due_actions = EVERY_SAMPLES, EVERY_ACTIONS

    def on_audio(self, size_bytes: int) -> None:
        """Note that these bytes were processed."""
        self.received_bytes += size_bytes

    def on_action(self) -> None:
        """An action of the client was processed, or refused."""
        self.actions += 1

    def on_stream_end(self, clock_samples: int, *, discards_half: bool) -> None:
        """A flush or a reset was processed."""
        self._positions.on_stream_end(clock_samples, self.received_bytes, discards_half=discards_half)

    def on_output(self, output: Action, rules: TurnConfig) -> bool:
        """Note an output of the machine; `rules` are its present ones. Returns True if audio has its final now.

        An utterance that begins while an action is processed begins before it: call `on_action` afterwards.
        """
        match output:
            case UtteranceStarted(utterance=number, start_samples=start):
                self._began[number] = _Beginning(start, self.actions, rules)
            case Final(utterance=number):
                self._began.pop(number, None)
                return output.start_samples < output.end_samples
            case ResetDone(utterance=int(number)):
                self._began.pop(number, None)
        return False

    def is_due(self, clock_samples: int) -> bool:
        """True if it is time for another point, by the audio and the actions since the last one."""
        return clock_samples >= self._due_samples or self.actions >= self._due_actions

    def point(self, checkpoint: Checkpoint, clock_samples: int, rules: TurnConfig) -> HandoverPoint | None:
        """Return the newest point, or None if it is not known. `rules`: those of the next utterance."""
        self._due_samples, self._due_actions = clock_samples + EVERY_SAMPLES, self.actions + EVERY_ACTIONS
        number, samples = checkpoint.utterance, checkpoint.end_samples
        began = self._began.get(number + 1, _Beginning(samples, self.actions, rules))
        received_bytes = self._positions.of(samples)
        if received_bytes is None:
            return None
        return HandoverPoint(received_bytes, began.actions, samples, number, began.rules, checkpoint.in_speech)


Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class HandoverOptions:
    """The options with which a session begins that may move."""

    query_rules: TurnConfig  # that the client's query asks for, which it sends to every server
    begin: Continuation | None = None  # where the session begins; None for a new one
    shown: ShownUtterance = field(default_factory=ShownUtterance)  # to the client, of the open utterance
    received: int = 0  # the last utterance whose final the client has


@dataclass(frozen=True, slots=True)
class _StateMessage(PartMessage):
    continuation: Continuation

    @property
    def size_bytes(self) -> int:
        """An upper bound of what it takes."""
        state = self.continuation
        hotwords = state.configured.hotwords if state.configured is not None else ""
        return 4 * MESSAGE_BYTES + 2 * CHARACTER_BYTES * (len(state.carried_over) + len(hotwords))


@dataclass(frozen=True, slots=True)
class ContinuationIssued(_StateMessage):
    """A place from which another server can go on; everything before it has been sent."""

    def wire(self) -> Json:
        """Return the message of the wire."""
        return {"status": "continuation", "continuation": wire_message(self.continuation)}

    def replaces(self, older: PartMessage) -> bool:
        """True for any older one."""
        return isinstance(older, ContinuationIssued)


@dataclass(frozen=True, slots=True)
class MoveRequested(_StateMessage):
    """The server ends soon: the client should go on with another one."""

    within_s: float

    def wire(self) -> Json:
        """Return the message of the wire."""
        state = wire_message(self.continuation)
        return {"status": "reconnect", "continuation": state, "within_s": self.within_s}


async def read_opening(socket: WebSocket, opening: Opening) -> Opening:
    """Add the handover to a session whose client can go on with another server. Where it comes from one, the first
    frame of the socket says from where. Raises `InvalidInput`, and `WebSocketDisconnect` if the client leaves instead.
    """
    query = opening.query
    if not query.handover:
        return opening
    if not query.session_id:
        return opening.with_part(requested())
    asked = await read_frame(socket, query.session_id, query.received)
    state, configured = asked.state, None
    if (settings := state.configured) is not None:
        changed = {"language": settings.language, "hotwords": settings.hotwords, "endpointing": settings.endpointing}
        configured = query.model_copy(update=changed)
    # Letters that were used at the other servers stay used.
    query = query.model_copy(update={"first_speaker": state.first_speaker})
    opening = replace(opening, query=query, begin=state, configured=configured)
    return opening.with_part(requested(state, asked.shown, query.received))


def requested(begin: Continuation | None = None, shown: ShownUtterance | None = None, received: int = 0) -> PartRequest:
    """Return the handover of a session that begins there, as in `HandoverOptions`."""

    def make(session: PartSession) -> SessionHandover:
        options = HandoverOptions(session.asked_rules, begin, shown or ShownUtterance(), received)
        return SessionHandover(session.id, options, session.input_rate_hz)

    return PartRequest(make)


class SessionHandover(SessionPart):
    """The handover of one session: keeps `newest`, the last continuation, and what its client has been shown."""

    can_move = True

    def __init__(self, identity: str, options: HandoverOptions, input_rate_hz: int) -> None:
        self.begin = options.begin or Continuation(identity, "")
        self.newest = replace(self.begin, issuer=secrets.token_hex(8))
        self.points = HandoverPoints(input_rate_hz)
        self.is_continued = options.begin is not None
        self._query_rules = options.query_rules
        self._finals_known = max(0, options.received - self.begin.utterances)  # by the numbers of this machine
        self._text = ShownText()
        self._speakers = ShownSpeakers()
        self._begin_with(options.shown)

    def _begin_with(self, shown: ShownUtterance) -> None:
        number = shown.utterance - self.begin.utterances
        if number > self._finals_known:
            self._text.begin(number, shown.committed, round(shown.end_s - self.offset_s, 3))
        self._speakers.begin(number, [dict(run) for run in shown.speakers], self.begin.first_speaker)
        self._text.carry_over(1, self.begin.carried_over)

    @property
    def offset_s(self) -> float:
        """The session's time at which this machine began."""
        return samples_to_s(self.begin.samples)

    @property
    def first_speaker(self) -> int:
        """The first letter that the client has not seen."""
        return self._speakers.first_unused

    # -- what the machine returns, as the client gets it -------------------------------------------------------------

    def shown(self, message: Message) -> Message | None:
        """Return the message in place of this one; None for what the client has, or has seen more of."""
        match message:
            case Partial() | Final() if message.utterance <= self._finals_known:
                return None
            case Partial(utterance=number, text=text, committed=committed) as partial:
                end_s = round(samples_to_s(partial.end_samples), 3)
                found = self._text.on_partial(number, text, committed, end_s)
                if found is None:
                    return None
                return replace(partial, committed=found.committed, tentative=found.tentative)
            case Final(utterance=number, text=text) as final:
                return replace(final, text=self._text.on_final(number, text))
            case ResetDone(utterance=number):
                self._text.reset(number)
        return message

    def completed(self, outgoing: Outgoing) -> Outgoing:
        """Return the message with the speakers that the client has been shown, if it has any."""
        match outgoing:
            case Outgoing(message=Partial() | Final() as text, details=UtteranceSpeakers() as speakers):
                committed = text.text if isinstance(text, Final) else text.committed
                return replace(outgoing, details=self.labelled(speakers, committed))
            case Outgoing(message=UtteranceSpeakers() as speakers):
                return replace(outgoing, message=self.labelled(speakers))
        return outgoing

    def preceding(self) -> ContinuationIssued | None:
        """Return the continuation that the client needs before it sees a new letter, which others must not give."""
        relabelled = self.relabelled()
        return ContinuationIssued(relabelled) if relabelled is not None else None

    def on_wire(self, content: Json) -> Json:
        """Return the message by the numbers and times of the whole session."""
        return Offset(self.begin.utterances, self.offset_s).applied(content)

    def labelled(self, speakers: UtteranceSpeakers, committed: str | None = None) -> UtteranceSpeakers:
        """Return the runs that the client gets: of a text with these committed words, or of one that it has."""
        own = [{"speaker": run.speaker, "text": run.text} for run in speakers.runs]
        if committed is None:
            runs = self._speakers.on_update(speakers.utterance, own)
        else:
            runs = self._speakers.on_text(speakers.utterance, committed, own)
        if runs is None:
            return speakers
        return replace(speakers, runs=tuple(SpeakerRun(run["speaker"], run["text"] or "") for run in runs))

    # -- continuations -----------------------------------------------------------------------------------------------

    def has_issued(self, issuer: str) -> bool:
        """True if a continuation with this issuer is of this very session."""
        return self.newest.issuer == issuer

    def hello(self, session: PartSession, *, is_first: bool, is_resumed: bool) -> Json:
        """Return how many actions have arrived, and from where another server can go on."""
        content: Json = {"actions": session.received_actions} if is_resumed else {}
        if is_first:
            content |= {"continued": True} if is_resumed else {}
            content["continuation"] = wire_message(self.newest)
        return content

    def on_connect(self, machine: LiveMachine, *, is_resumed: bool) -> Iterable[ContinuationIssued]:
        """Return the newest continuation: the client may have lost it with its connection."""
        return [ContinuationIssued(self.continuation(machine))] if is_resumed else []

    def move_request(self, machine: LiveMachine, within_s: float) -> MoveRequested:
        """Return the request to go on with another server within that time."""
        return MoveRequested(self.continuation(machine), within_s)

    def on_processed(
        self, actions: Sequence[Action], event: Event | None, machine: LiveMachine, *, counted: bool
    ) -> ContinuationIssued | None:
        """Return a continuation to send after what the machine returned, if it is time for one."""
        if isinstance(event, Audio):
            self.points.on_audio(len(event.pcm))
        finals = [self.points.on_output(action, machine.rules) for action in actions]
        if counted:
            self.points.on_action()
        if isinstance(event, Flush | Reset | Close):
            self.points.on_stream_end(machine.clock_samples, discards_half=isinstance(event, Reset))
        if not any(finals) and not self.points.is_due(machine.clock_samples):
            return None
        before, now = self.newest, self.continuation(machine)
        return ContinuationIssued(now) if now != before else None

    def continuation(self, machine: LiveMachine) -> Continuation:
        """Return the newest one, as of now."""
        (checkpoint,) = machine.receive(GetCheckpoint())
        assert isinstance(checkpoint, Checkpoint)
        point = self.points.point(checkpoint, machine.clock_samples, machine.rules)
        if point is not None:
            self.newest = replace(
                self.newest,
                utterances=self.begin.utterances + point.utterances,
                samples=self.begin.samples + point.samples,
                received_bytes=self.begin.received_bytes + point.received_bytes,
                actions=self.begin.actions + point.actions,
                in_speech=point.in_speech,
                carried_over=self._text.carried_over(point.utterances + 1),
                configured=self._configured(point.rules),
            )
        return self.relabelled() or self.newest

    def relabelled(self) -> Continuation | None:
        """Return the newest one, if a letter has been used since that it does not know of."""
        if self.newest.first_speaker == self.first_speaker:
            return None
        self.newest = replace(self.newest, first_speaker=self.first_speaker)
        return self.newest

    def _configured(self, rules: TurnConfig) -> TurnSettings | None:
        now, asked = _settings(rules), _settings(self._query_rules)
        return None if now == asked else now


def _settings(rules: TurnConfig) -> TurnSettings:
    is_manual = rules.detection is Detection.MANUAL
    semantic = None if is_manual else rules.end_of_turn is not None
    return TurnSettings(rules.language or "", rules.context, is_manual, semantic)
