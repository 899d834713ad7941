"""Utterances assembled on the fly from a phrase corpus: spans, pauses, cuts, prompts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from asr_server.core.audio import SAMPLE_RATE
from asr_training.augmentation import augment, background, change_speed
from asr_training.corpus import Corpus, Recording
from asr_training.speech import Speech, SpokenWord, Wave
from asr_training.vocabulary import ENGLISH_WORDS, MANDARIN_ITEMS, Language
from asr_training.voices import Engine, Voice

MAX_SECONDS = 30.0
# A word is part of the target if this share of it lies inside the clip.
AUDIBLE_SHARE = 0.8
# Longest pause between two phrases, seconds; one is drawn per utterance, so that some are dense throughout.
PAUSES_S = (0.05, 0.15, 0.3, 0.6, 1.5)


@dataclass(frozen=True)
class Utterance:
    """A training example.

    `samples`: float32, 16 kHz, shape (samples,). `language` is `None` without speech. `spoken`: the words of the target
    and their times. `context` goes into the system message. `forced`: the language that the prompt states, `None` if
    the model names it.
    """

    samples: Wave
    language: Language | None
    spoken: tuple[SpokenWord, ...]
    context: str = ""
    forced: Language | None = None

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(word.text for word in self.spoken)


@dataclass(frozen=True)
class Mixture:
    """Shares of the kinds of utterance; the rest are single phrases.

    `flite`: share of English in flite's voices. They are few, but made from recordings of people; drawn as often as
    the single voices of espeak-ng, they would be too rare.
    """

    nothing: float = 0.05
    mandarin: float = 0.13
    span: float = 0.42
    cut: float = 0.5
    context: float = 0.07
    augmented: float = 0.8
    flite: float = 0.3


@dataclass(frozen=True)
class UtteranceMaker:
    """Draws utterances from `corpus`."""

    corpus: Corpus
    mixture: Mixture

    def draw(self, rng: random.Random) -> Utterance:
        """One random utterance of at most `MAX_SECONDS`, augmented and prompted."""
        if rng.random() < self.mixture.nothing:
            return self._prompted(_nothing(rng), rng)
        language = Language.CHINESE if rng.random() < self.mixture.mandarin else Language.ENGLISH
        if rng.random() < self.mixture.span:
            seconds = rng.uniform(4.0, MAX_SECONDS if language is Language.ENGLISH else 16.0)
            utterance = self.span(rng, language, seconds)
        else:
            utterance = self._phrase(rng, language)
        if rng.random() < self.mixture.augmented:
            utterance = replace(utterance, samples=augment(utterance.samples, rng))
        return self._prompted(utterance, rng)

    def span(self, rng: random.Random, language: Language, seconds: float, pause_s: float | None = None) -> Utterance:
        """Phrases in a row, about `seconds` long: complete, or cut at both ends with the probability `mixture.cut`."""
        longest_s = rng.choice(PAUSES_S) if pause_s is None else pause_s
        if rng.random() >= self.mixture.cut:
            speech = self.flow(rng, language, seconds - 2.0, longest_s)
            return _window(speech, language, 0, min(len(speech.samples), int(MAX_SECONDS * SAMPLE_RATE)))
        speech = self.flow(rng, language, seconds + 2.0, longest_s)
        start = rng.randint(0, len(speech.samples) - int(seconds * SAMPLE_RATE))
        return _window(speech, language, start, start + int(seconds * SAMPLE_RATE))

    def _phrase(self, rng: random.Random, language: Language) -> Utterance:
        speech = self.corpus.speech(rng.choice(self.corpus.by(self._voice(rng, language))))
        speech = _faster(speech, rng.uniform(0.88, 1.14)) if rng.random() < 0.5 else speech
        start = rng.randint(0, len(speech.samples) // 2) if rng.random() < self.mixture.cut / 4 else 0
        last = len(speech.samples)
        end = rng.randint(start + last // 3, last) if rng.random() < self.mixture.cut / 2 else last
        lead = Speech(_silence(rng, 0.5 if start == 0 else 0.01), ())
        tail = Speech(_silence(rng, 0.7 if end == last else 0.01), ())
        piece = Speech(speech.samples[start:end], audible_words(speech.words, start, end))
        whole = _joined((lead, piece, tail))
        return Utterance(whole.samples, language if whole.words else None, whole.words)

    def flow(self, rng: random.Random, language: Language, seconds: float, pause_s: float) -> Speech:
        """At least `seconds` of phrases one after another, with pauses of at most `pause_s` between them."""
        change = rng.random() < 0.2  # a conversation: the voice may change at every phrase
        factor = rng.uniform(0.88, 1.14) if rng.random() < 0.5 else 1.0
        pieces: list[Speech] = [Speech(_silence(rng, 0.5), ())]
        # Each phrase at most once: from spans with repetitions the model would learn to copy.
        waiting: list[Recording] = []
        while sum(len(piece.samples) for piece in pieces) < seconds * SAMPLE_RATE:
            if change or not waiting:
                recordings = self.corpus.by(self._voice(rng, language))
                waiting = rng.sample(recordings, len(recordings))
            speech = self.corpus.speech(waiting.pop())
            pieces += [_faster(speech, factor) if factor != 1.0 else speech, Speech(_silence(rng, pause_s), ())]
        return _joined(pieces)

    def _voice(self, rng: random.Random, language: Language) -> Voice:
        voices = self.corpus.of(language)
        recorded = tuple(voice for voice in voices if voice.engine is Engine.FLITE)
        return rng.choice(recorded if recorded and rng.random() < self.mixture.flite else voices)

    def _prompted(self, utterance: Utterance, rng: random.Random) -> Utterance:
        if rng.random() < self.mixture.context:
            utterance = replace(utterance, context=_context(rng, utterance.words))
        if utterance.language is None and rng.random() < 0.3:
            utterance = replace(utterance, forced=rng.choice(list(Language)))
        elif rng.random() < 0.05:
            utterance = replace(utterance, forced=utterance.language)
        return utterance


def audible_words(
    words: Sequence[SpokenWord], start: int, end: int, share: float = AUDIBLE_SHARE
) -> tuple[SpokenWord, ...]:
    """The words of which at least `share` lies in the samples [start, end), with times relative to `start`."""
    placed = []
    for word in words:
        first, last = max(word.start, start), min(word.end, end)
        if last - first >= share * max(1, word.end - word.start):
            placed.append(SpokenWord(word.text, first - start, last - start))
    return tuple(placed)


def _window(speech: Speech, language: Language, start: int, end: int) -> Utterance:
    words = audible_words(speech.words, start, end)
    return Utterance(speech.samples[start:end], language if words else None, words)


def _faster(speech: Speech, factor: float) -> Speech:
    words = tuple(SpokenWord(w.text, int(w.start / factor), int(w.end / factor)) for w in speech.words)
    return Speech(change_speed(speech.samples, factor), words)


def _joined(pieces: Sequence[Speech]) -> Speech:
    words: list[SpokenWord] = []
    offset = 0
    for piece in pieces:
        words += [SpokenWord(w.text, w.start + offset, w.end + offset) for w in piece.words]
        offset += len(piece.samples)
    return Speech(np.concatenate([piece.samples for piece in pieces]), tuple(words))


def _silence(rng: random.Random, longest_s: float) -> Wave:
    return np.zeros(int(SAMPLE_RATE * rng.uniform(0, longest_s)), np.float32)


def _nothing(rng: random.Random) -> Utterance:
    seconds = rng.uniform(0.4, 6.0) if rng.random() < 0.8 else rng.uniform(6.0, MAX_SECONDS)
    return Utterance(background(int(seconds * SAMPLE_RATE), rng), None, ())


def _context(rng: random.Random, words: Sequence[str]) -> str:
    """Names and terms as users write them: some that are said, some of the vocabulary, some random."""
    said = rng.sample(words, min(len(words), rng.randint(0, 3)))
    known = rng.choices((*ENGLISH_WORDS, *MANDARIN_ITEMS), k=rng.randint(0, 4))
    letters = "abcdefghijklmnopqrstuvwxyz"
    strange = ["".join(rng.choices(letters, k=rng.randint(2, 8))) for _ in range(rng.randint(0, 4))]
    terms = [*said, *known, *(name.capitalize() if rng.random() < 0.5 else name for name in strange)]
    rng.shuffle(terms)
    return rng.choice((" ", ", ", "; ")).join(terms)
