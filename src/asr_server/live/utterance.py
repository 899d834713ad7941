"""One utterance: its frames, the hypotheses about them, and where it may be cut."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from asr_server.audio.segmentation.quietest import cut_cost, quietest_frame
from asr_server.core.transcript import Token
from asr_server.live.agreement import Agreement, CommitRules, following
from asr_server.live.events import Ending, Final, Partial, ResultKind, Samples, TranscribeResult, TurnConfig
from asr_server.text.boundary import ends_sentence


@dataclass(slots=True, eq=False)
class Frame:
    """At most 512 samples, and how likely they hold speech."""

    samples: Samples
    probability: float


class OpenUtterance:
    """An utterance from its first frame to its final. `rules` are those it began with."""

    def __init__(self, number: int, start_samples: int, rules: TurnConfig, commit: CommitRules) -> None:
        self.number = number
        self.start_samples = start_samples
        self.rules = rules
        self.language = ""
        self.endpoint_samples: int | None = None  # its length if the present pause ends it
        # Of the last hypothesis; no audio needs none, so an empty utterance is as one with its final hypothesis.
        self.result_samples = 0
        self.result_kind = ResultKind.FINAL
        self.result_truncated = False
        self.attempts = 0
        self.failure_reported = False
        self.ending = Ending.PAUSE
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
        """How much of the audio a hypothesis should be made from now: the pause behind the speech adds nothing."""
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

    def on_result(self, result: TranscribeResult, samples: int, kind: ResultKind) -> None:
        """A hypothesis made from the first `samples`."""
        self._agreement.on_result(result, samples)
        self.result_samples, self.result_kind, self.result_truncated = samples, kind, result.truncated
        self._tokens = _tokens(result)
        self.language = result.language or self.language

    @property
    def ends_with_sentence(self) -> bool:
        """Whether the text of the audio before the present pause is known and ends as a sentence does."""
        return self.result_samples == self.endpoint_samples and ends_sentence(self._agreement.text)

    def partial(self) -> Partial:
        """The utterance as the last hypothesis has it."""
        known = self._agreement
        return Partial(
            utterance=self.number,
            committed=known.committed,
            tentative=known.tentative,
            language=self.language,
            start_samples=self.start_samples,
            end_samples=self.start_samples + self.result_samples,
        )

    def final(self, result: TranscribeResult | None) -> Final:
        """The final, from the result on all of the audio; without one, from the last hypothesis.

        A hypothesis made before a cut may reach into the next utterance; then the final has the committed words only.
        """
        known = self._agreement
        if result is not None:
            text, language, tokens = following(known.committed, result), result.language, _tokens(result)
        elif self.result_samples <= self._samples:
            text, language, tokens = known.text, self.language, self._tokens
        else:
            text, language = known.committed, self.language
            tokens = self._tokens[: len(known.committed_ids)]
        written = tuple(token for token in tokens if token.written)
        return Final(self.number, text, language, self.start_samples, self.end_samples, self.ending, written)


def _tokens(result: TranscribeResult) -> tuple[Token, ...]:
    return tuple(map(Token, result.pieces, result.logprobs))
