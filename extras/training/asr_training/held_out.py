"""The evaluation sets: utterances in held-out voices, the same for every checkpoint."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from asr_server.core.audio import SAMPLE_RATE
from asr_training.augmentation import augment, background
from asr_training.corpus import Corpus, open_corpus
from asr_training.speech import Speech
from asr_training.utterances import Mixture, Utterance, UtteranceMaker, audible_words
from asr_training.vocabulary import Language
from asr_training.voices import Engine, Role

UNCUT = Mixture(nothing=0.0, mandarin=0.0, span=0.0, cut=0.0, context=0.0, augmented=0.0)
DENSE_PAUSE_S = 0.25
CONTEXT = "kitchen, bedroom, Annika, timer, Zorblatt"


@dataclass(frozen=True)
class EvaluationItem:
    """An utterance and the words that its boundaries cut, which may be transcribed or left out without error.

    `utterance.words` are the complete words; `before` and `after` have at most one word each.
    """

    utterance: Utterance
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def references(self) -> Iterator[tuple[str, ...]]:
        for first in {(), self.before}:
            for last in {(), self.after}:
                yield (*first, *self.utterance.words, *last)


@dataclass(frozen=True)
class HeldOut:
    """The held-out voices. With the same seed, each method draws the same utterances every time."""

    voices: Corpus
    seed: int

    @classmethod
    def open(cls, work: Path, seed: int) -> Self:
        """Open the held-out phrase corpus in `work`, or make it if it is missing. Raises `SynthesisUnavailable`."""
        return cls(open_corpus(work / "held-out", Role.HELD_OUT, seed, takes_share=0.34), seed)

    def _rng(self, name: str) -> random.Random:
        return random.Random(f"{self.seed}/{name}")

    def _maker(self, engine: Engine) -> UtteranceMaker:
        takes = tuple(take for take in self.voices.takes if take.voice.engine is engine)
        return UtteranceMaker(replace(self.voices, takes=takes), UNCUT)


class HeldOutSets(HeldOut):
    """All sets of one seed."""

    def sets(self) -> dict[str, tuple[EvaluationItem, ...]]:
        """Every set by name."""
        espeak, festival = self._maker(Engine.ESPEAK), self._maker(Engine.FESTIVAL)
        found = {
            "short, espeak-ng": self._short("espeak", espeak, 160),
            "short, festival": self._short("festival", festival, 80),
            "short, noise and room": self._noisy(150),
            "forced language": self._prompted("forced", 60, forced=Language.ENGLISH),
            "with a context": self._prompted("context", 60, context=CONTEXT),
            "mandarin": self._mandarin(60),
            "nothing": self._nothing(60),
        }
        for seconds, count in ((6, 40), (15, 24), (28, 16)):
            items = self._dense(seconds, count, (espeak, festival))
            found[f"dense {seconds} s, espeak-ng"], found[f"dense {seconds} s, festival"] = items[::2], items[1::2]
        found["prefix"] = self._prefixes(80, (espeak, festival))
        return found

    def _short(self, name: str, maker: UtteranceMaker, count: int) -> tuple[EvaluationItem, ...]:
        rng = self._rng(name)
        return tuple(EvaluationItem(maker.draw(rng)) for _ in range(count))

    def _noisy(self, count: int) -> tuple[EvaluationItem, ...]:
        rng, maker = self._rng("noisy"), UtteranceMaker(self.voices, replace(UNCUT, augmented=1.0))
        return tuple(EvaluationItem(maker.draw(rng)) for _ in range(count))

    def _prompted(
        self, name: str, count: int, context: str = "", forced: Language | None = None
    ) -> tuple[EvaluationItem, ...]:
        rng, maker = self._rng(name), UtteranceMaker(self.voices, UNCUT)
        return tuple(EvaluationItem(replace(maker.draw(rng), context=context, forced=forced)) for _ in range(count))

    def _mandarin(self, count: int) -> tuple[EvaluationItem, ...]:
        rng, maker = self._rng("mandarin"), UtteranceMaker(self.voices, replace(UNCUT, mandarin=1.0))
        return tuple(EvaluationItem(maker.draw(rng)) for _ in range(count))

    def _nothing(self, count: int) -> tuple[EvaluationItem, ...]:
        rng = self._rng("nothing")
        clips = (background(int(rng.uniform(0.5, 12.0) * SAMPLE_RATE), rng) for _ in range(count))
        return tuple(EvaluationItem(Utterance(clip, None, ())) for clip in clips)

    def _dense(self, seconds: int, count: int, makers: tuple[UtteranceMaker, ...]) -> tuple[EvaluationItem, ...]:
        rng = self._rng(f"dense {seconds}")
        items = []
        for number in range(count):
            speech = makers[number % len(makers)].flow(rng, Language.ENGLISH, seconds + 4.0, DENSE_PAUSE_S)
            start = rng.randint(0, len(speech.samples) - seconds * SAMPLE_RATE)
            items.append(_cut(speech, start, start + seconds * SAMPLE_RATE))
        return tuple(items)

    def _prefixes(self, count: int, makers: tuple[UtteranceMaker, ...]) -> tuple[EvaluationItem, ...]:
        rng = self._rng("prefix")
        items = []
        for number in range(count):
            speech = makers[number % len(makers)].flow(rng, Language.ENGLISH, 12.0, 0.6)
            item = _cut(speech, 0, int(rng.uniform(0.6, 12.0) * SAMPLE_RATE))
            if number % 2:
                item = replace(item, utterance=replace(item.utterance, samples=augment(item.utterance.samples, rng)))
            items.append(item)
        return tuple(items)


def _cut(speech: Speech, start: int, end: int) -> EvaluationItem:
    wholly = audible_words(speech.words, start, end, share=1.0)
    before = tuple(word.text for word in speech.words if word.start < start < word.end)
    after = tuple(word.text for word in speech.words if word.start < end < word.end)
    language = Language.ENGLISH if wholly else None
    return EvaluationItem(Utterance(speech.samples[start:end], language, wholly), before, after)
