"""A live session that another server may go on with, or that goes on with another's.

The machine of a session counts utterances and samples from its own beginning. The offsets turn its figures into those
of the client, where messages are rendered.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from asr_server.core.audio import samples_to_s
from asr_server.core.transcript import SpeakerRun
from asr_server.features.handover.continuation import Continuation, ShownUtterance, TurnSettings
from asr_server.features.handover.handover_points import HandoverPoints
from asr_server.features.speakers.live_labels import UtteranceSpeakers
from asr_server.features.speakers.shown_speakers import ShownSpeakers
from asr_server.live.machine.events import (
    Action,
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
)
from asr_server.live.machine.session import LiveMachine
from asr_server.live.machine.shown_text import ShownText

Sent = TypeVar("Sent")


@dataclass(frozen=True, slots=True)
class HandoverOptions:
    """Of a session that may move. `query_rules`: the configuration that the client's query asks for, which it sends to
    every server. `begin`: where the session begins; None for a new one. `shown`, `received`: what the client was
    shown of the open utterance, and the last utterance whose final it has."""

    query_rules: TurnConfig
    begin: Continuation | None = None
    shown: ShownUtterance = field(default_factory=ShownUtterance)
    received: int = 0


@dataclass(frozen=True, slots=True)
class ContinuationIssued:
    """From where another server can go on; everything before it has been sent."""

    continuation: Continuation


@dataclass(frozen=True, slots=True)
class MoveRequested:
    """The server ends soon: the client should go on with another one within so many seconds."""

    continuation: Continuation
    within_s: float


@dataclass(frozen=True, slots=True)
class SpeakersRestarted:
    """This server does not know the voices of the session: the same people get other letters from now on."""


class SessionHandover:
    """Of one session: keeps `newest`, the last continuation, and what its client has been shown."""

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

    def shown(self, output: Sent) -> Sent | Partial | Final | None:
        """The message in place of this one; None for what the client has, or has seen more of."""
        match output:
            case Partial() | Final() if output.utterance <= self._finals_known:
                return None
            case Partial(utterance=number, text=text, committed=committed) as partial:
                end_s = round(samples_to_s(partial.end_samples), 3)
                found = self._text.on_partial(number, text, committed, end_s)
                if found is None:
                    return None
                return replace(partial, committed=found.committed, tentative=found.tentative)
            case Final(utterance=number, text=text) as final:
                return replace(final, text=self._text.on_final(number, text))
            case ResetDone():
                self._text.reset()
        return output

    def labelled(self, speakers: UtteranceSpeakers, committed: str | None = None) -> UtteranceSpeakers:
        """The runs that the client gets: of a text with these committed words, or of one that it has."""
        own = [{"speaker": run.speaker, "text": run.text} for run in speakers.runs]
        if committed is None:
            runs = self._speakers.on_update(speakers.utterance, own)
        else:
            runs = self._speakers.on_text(speakers.utterance, committed, own)
        if runs is None:
            return speakers
        return replace(speakers, runs=tuple(SpeakerRun(run["speaker"], run["text"] or "") for run in runs))

    # -- continuations -----------------------------------------------------------------------------------------------

    def on_processed(
        self, outputs: Sequence[Action], event: Event | None, machine: LiveMachine, *, counted: bool
    ) -> Continuation | None:
        """The machine has processed an event, and its outputs were sent. Returns a continuation to send behind them.

        `counted`: the event is an action of the client's.
        """
        finals = [self.points.on_output(output, machine.rules) for output in outputs]
        if counted:
            self.points.on_action()
        if isinstance(event, Flush | Reset | Close):
            self.points.on_stream_end(machine.clock_samples, discards_half=isinstance(event, Reset))
        if not any(finals) and not self.points.is_due(machine.clock_samples):
            return None
        before, now = self.newest, self.continuation(machine)
        return now if now != before else None

    def continuation(self, machine: LiveMachine) -> Continuation:
        """The newest one, as of now."""
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
                carried_over=self._text.carried_over(point.utterances + 1),
                configured=self._configured(point.rules),
            )
        return self.relabelled() or self.newest

    def relabelled(self) -> Continuation | None:
        """The newest one, if a letter has been used since that it does not know of."""
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
