"""One utterance: its parts with their frames, the hypotheses about them, and where it may be cut."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from asr_server.audio.segmentation import cut_cost, quietest_frame
from asr_server.core.transcript import Token
from asr_server.live.machine.agreement import Agreement, CommitRules, following
from asr_server.live.machine.events import (
    Ending,
    Final,
    FinalPart,
    Partial,
    ResultKind,
    Samples,
    SessionError,
    TranscribeResult,
    TurnConfig,
)
from asr_server.text import scripts
from asr_server.text.boundary import ends_sentence


@dataclass(slots=True, eq=False)
class Frame:
    """At most 512 samples, and how likely they hold speech."""

    samples: Samples
    probability: float


@dataclass(slots=True, eq=False)
class OpenUtterance:
    """The state that the parts of an utterance share. `rules` are those it began with.

    `samples`, `end_samples`: of the parts that ended. `parts`, `tokens`, `language`: of those that have their final.
    """

    number: int
    start_samples: int
    rules: TurnConfig
    samples: int = 0
    end_samples: int = 0
    ending: Ending = Ending.PAUSE
    parts: list[FinalPart] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    language: str = ""
    error: SessionError | None = None
    failure_reported: bool = False
    end_of_turn: float | None = None  # as estimated in its last pause

    @property
    def text(self) -> str:
        """The text of the parts that have their final."""
        return self.text_with("")

    @property
    def ends_with_sentence(self) -> bool:
        """True if that text ends as a sentence does."""
        return ends_sentence(self.text)

    def partial(self) -> Partial:
        """The utterance as far as its parts have their final: all of that is certain."""
        end_samples = self.parts[-1].end_samples if self.parts else self.start_samples
        return Partial(self.number, self.text, "", self.language, self.start_samples, end_samples)

    def text_with(self, text: str) -> str:
        """Return that text with the text of the next part after it."""
        return scripts.join([*(part.text for part in self.parts), text])


class Part:
    """A part of an utterance, which is transcribed on its own: between two long pauses, or the whole utterance."""

    def __init__(self, utterance: OpenUtterance, start_samples: int, commit: CommitRules) -> None:
        self.utterance = utterance
        self.start_samples = start_samples
        self.is_last = False  # known once the utterance has ended
        self.language = ""
        self.endpoint_samples: int | None = None  # its length if the present pause ends it
        # Of the last hypothesis; no audio needs none, so an empty part is as one with its final hypothesis.
        self.result_samples = 0
        self.result_kind = ResultKind.FINAL
        self.result_truncated = False
        self.confirmed_samples = 0  # of the last hypothesis that may commit words
        self.attempts = 0
        self._agreement = Agreement(commit)
        self._tokens: tuple[Token, ...] = ()  # one for each id of the last hypothesis
        self._frames: list[Frame] = []
        self._samples = 0

    # -- audio -------------------------------------------------------------------------------------------------------

    @property
    def samples(self) -> int:
        """Length so far."""
        return self._samples

    @property
    def end_samples(self) -> int:
        """The position behind the last sample."""
        return self.start_samples + self._samples

    def add(self, frame: Frame) -> None:
        """The next frame."""
        self._frames.append(frame)
        self._samples += len(frame.samples)

    @property
    def useful_samples(self) -> int:
        """The samples from which a hypothesis should be made now: the pause after the speech adds nothing."""
        return self._samples if self.endpoint_samples is None else self.endpoint_samples

    def audio(self, samples: int) -> Samples:
        """The first `samples`, a copy. `samples` lies between two frames."""
        taken = 0
        parts: list[Samples] = []
        for frame in self._frames:
            if taken >= samples:
                break
            parts.append(frame.samples)
            taken += len(frame.samples)
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def last_audio(self, samples: int) -> Samples:
        """Return whole frames from the end that hold about the last `samples`, as a copy."""
        parts: list[Samples] = []
        taken = 0
        for frame in reversed(self._frames):
            if taken >= samples:
                break
            parts.append(frame.samples)
            taken += len(frame.samples)
        return np.concatenate(parts[::-1]) if parts else np.zeros(0, np.float32)

    def split_at(self, frames: int) -> list[Frame]:
        """Keep the first frames, return the others."""
        rest, self._frames = self._frames[frames:], self._frames[:frames]
        self._samples -= sum(len(frame.samples) for frame in rest)
        return rest

    def split_last(self, frames: int) -> list[Frame]:
        """Return the last frames, keep the others."""
        return self.split_at(len(self._frames) - frames)

    def quietest_frame(self) -> int:
        """The frame in the last third whose surroundings of 160 ms are quietest: the place to cut, never the first."""
        costs = [cut_cost(float(np.mean(np.square(frame.samples))), frame.probability) for frame in self._frames]
        return quietest_frame(costs, max(1, 2 * len(costs) // 3), len(costs))

    # -- text --------------------------------------------------------------------------------------------------------

    @property
    def prefix(self) -> tuple[int, ...]:
        """Ids with which every further answer begins."""
        return self._agreement.committed_ids

    @property
    def draft(self) -> tuple[int, ...]:
        """Ids of the last hypothesis."""
        return self._agreement.ids

    @property
    def committed(self) -> str:
        """The text of the ids of `prefix`."""
        return self._agreement.committed

    @property
    def text(self) -> str:
        """The text of the last hypothesis."""
        return self._agreement.text

    def on_result(self, result: TranscribeResult, samples: int, kind: ResultKind, *, may_commit: bool = True) -> None:
        """A hypothesis made from the first `samples`."""
        self._agreement.on_result(result, samples, may_commit=may_commit)
        if may_commit:
            self.confirmed_samples = samples
        self.result_samples, self.result_kind, self.result_truncated = samples, kind, result.truncated
        self._tokens = _tokens(result)
        self.language = result.language or self.language

    @property
    def ends_with_sentence(self) -> bool:
        """True if the text of the audio before the present pause is known and ends as a sentence does."""
        return self.result_samples == self.endpoint_samples and ends_sentence(self._agreement.text)

    def partial(self) -> Partial:
        """The utterance as the last hypothesis has it."""
        known = self._agreement
        committed = self.utterance.text_with(known.committed)
        return Partial(
            utterance=self.utterance.number,
            committed=committed,
            tentative=self.utterance.text_with(known.text)[len(committed) :],
            language=self.language or self.utterance.language,
            start_samples=self.utterance.start_samples,
            end_samples=self.start_samples + self.result_samples,
        )

    def final(self, result: TranscribeResult | None) -> Partial | Final:
        """Return the final, made of the result on all of the audio; without one, of the last hypothesis.

        All of the utterance's text so far is certain then. A hypothesis made before a cut may reach into the next
        utterance; then only the committed words of it are taken.
        """
        known = self._agreement
        if result is not None:
            text, language, tokens = following(known.committed, result), result.language, _tokens(result)
        elif self.result_samples <= self._samples:
            text, language, tokens = known.text, self.language, self._tokens
        else:
            text, language = known.committed, self.language
            tokens = self._tokens[: len(known.committed_ids)]
        whole = self.utterance
        if self._samples:
            whole.parts.append(FinalPart(self.start_samples, self.end_samples, text))
        whole.tokens += [token for token in tokens if token.written]
        whole.language = language or whole.language
        if not self.is_last:
            return whole.partial()
        return Final(
            whole.number,
            whole.text,
            whole.language,
            whole.start_samples,
            whole.end_samples,
            whole.ending,
            tuple(whole.parts),
            tuple(whole.tokens),
            whole.error,
            whole.end_of_turn,
        )


def _tokens(result: TranscribeResult) -> tuple[Token, ...]:
    return tuple(map(Token, result.pieces, result.logprobs))
