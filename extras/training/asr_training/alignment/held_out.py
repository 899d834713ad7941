"""The evaluation sets of the aligner: utterances in held-out voices with the true times of their words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from asr_server.core.audio import SAMPLE_RATE
from asr_training.augmentation import augment
from asr_training.held_out import HeldOut
from asr_training.utterances import Utterance, UtteranceMaker
from asr_training.vocabulary import Language
from asr_training.voices import Engine

PAUSE_S = 0.4
FEWEST_WORDS = 2


class AlignerSets(HeldOut):
    """All sets of one seed."""

    def sets(self) -> Iterator[tuple[str, tuple[Utterance, ...]]]:
        """Every set with its name."""
        espeak, festival = self._maker(Engine.ESPEAK), self._maker(Engine.FESTIVAL)
        english, chinese = Language.ENGLISH, Language.CHINESE
        yield "phrases, espeak-ng", self._drawn("phrases", espeak, 120)
        yield "phrases, festival", self._drawn("phrases", festival, 60)
        noisy = self._drawn("noisy", espeak, 80)
        rng = self._rng("noise")
        yield "phrases, noise and room", tuple(replace(item, samples=augment(item.samples, rng)) for item in noisy)
        for seconds, count in ((7, 40), (15, 30), (28, 20)):
            yield f"spans of {seconds} s, espeak-ng", self._spans(espeak, english, seconds, count)
        yield "spans of 15 s, festival", self._spans(festival, english, 15, 20)
        yield "mandarin, 7 s", self._spans(espeak, chinese, 7, 40)

    def _drawn(self, name: str, maker: UtteranceMaker, count: int) -> tuple[Utterance, ...]:
        rng = self._rng(name)
        drawn = (maker.draw(rng) for _ in iter(int, 1))
        chosen = (item for item in drawn if len(item.words) >= FEWEST_WORDS)
        return tuple(item for item, _ in zip(chosen, range(count), strict=False))

    def _spans(self, maker: UtteranceMaker, language: Language, seconds: int, count: int) -> tuple[Utterance, ...]:
        rng = self._rng(f"{language}/{seconds}")
        spans = []
        for _ in range(count):
            speech = maker.flow(rng, language, seconds - 2.0, PAUSE_S)
            end = min(len(speech.samples), 30 * SAMPLE_RATE)
            words = tuple(word for word in speech.words if word.end <= end)
            spans.append(Utterance(speech.samples[:end], language, words))
        return tuple(spans)
