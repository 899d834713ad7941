"""Utterances assembled on the fly from a phrase bank: spans, pauses, cuts, prompts. No tensors."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from asr_server.core.audio import SAMPLE_RATE
from asr_training.augmentation import background, resampled, worn
from asr_training.bank import Bank, Recording
from asr_training.speech import Speech, SpokenWord, Wave
from asr_training.vocabulary import ENGLISH_WORDS, MANDARIN_ITEMS, Language
from asr_training.voices import Engine, Voice

MAX_SECONDS = 30.0
# A word counts as heard when this share of it lies inside the clip; the rest of a shorter piece is not guessed at.
HEARD_SHARE = 0.8
# Longest pause between two phrases, seconds; one is drawn per utterance, so that some are dense throughout.
PAUSES_S = (0.05, 0.15, 0.3, 0.6, 1.5)


@dataclass(frozen=True)
class Utterance:
    """A training example.

    `samples`: float32, 16 kHz, shape (samples,). `language` is `None` when nobody speaks. `spoken`: the words to be
    written and where they sound. `context` goes into the system turn. `forced`: the language the prompt dictates,
    `None` where the model names it itself.
    """

    samples: Wave
    language: Language | None
    spoken: tuple[SpokenWord, ...]
    context: str = ""
    forced: Language | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The words to be written."""
        return tuple(word.text for word in self.spoken)


@dataclass(frozen=True)
class Mixture:
    """Shares of the kinds of utterance; what is left over are single phrases.

    `flite`: share of English that flite speaks. It has few voices, but they are made from recordings of people and
    weigh as much as many of espeak-ng's; drawn like those, they would be forgotten.
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
    """Draws utterances from `bank`."""

    bank: Bank
    mixture: Mixture

    def draw(self, rng: random.Random) -> Utterance:
        """One random utterance of at most `MAX_SECONDS`, ready to be heard."""
        if rng.random() < self.mixture.nothing:
            return self._prompted(_nothing(rng), rng)
        language = Language.CHINESE if rng.random() < self.mixture.mandarin else Language.ENGLISH
        if rng.random() < self.mixture.span:
            seconds = rng.uniform(4.0, MAX_SECONDS if language is Language.ENGLISH else 16.0)
            utterance = self.span(rng, language, seconds)
        else:
            utterance = self._phrase(rng, language)
        if rng.random() < self.mixture.augmented:
            utterance = replace(utterance, samples=worn(utterance.samples, rng))
        return self._prompted(utterance, rng)

    def span(self, rng: random.Random, language: Language, seconds: float, pause_s: float | None = None) -> Utterance:
        """Phrases one after another, about `seconds` long: whole ones, or with the mixture's share cut at both ends."""
        longest_s = rng.choice(PAUSES_S) if pause_s is None else pause_s
        if rng.random() >= self.mixture.cut:
            speech = self.flow(rng, language, seconds - 2.0, longest_s)
            return _window(speech, language, 0, min(len(speech.samples), int(MAX_SECONDS * SAMPLE_RATE)))
        speech = self.flow(rng, language, seconds + 2.0, longest_s)
        start = rng.randint(0, len(speech.samples) - int(seconds * SAMPLE_RATE))
        return _window(speech, language, start, start + int(seconds * SAMPLE_RATE))

    def _phrase(self, rng: random.Random, language: Language) -> Utterance:
        speech = self.bank.speech(rng.choice(self.bank.by(self._voice(rng, language))))
        speech = _faster(speech, rng.uniform(0.88, 1.14)) if rng.random() < 0.5 else speech
        start = rng.randint(0, len(speech.samples) // 2) if rng.random() < self.mixture.cut / 4 else 0
        last = len(speech.samples)
        end = rng.randint(start + last // 3, last) if rng.random() < self.mixture.cut / 2 else last
        lead = Speech(_silence(rng, 0.5 if start == 0 else 0.01), ())
        tail = Speech(_silence(rng, 0.7 if end == last else 0.01), ())
        piece = Speech(speech.samples[start:end], heard(speech.words, start, end))
        whole = _joined((lead, piece, tail))
        return Utterance(whole.samples, language if whole.words else None, whole.words)

    def flow(self, rng: random.Random, language: Language, seconds: float, pause_s: float) -> Speech:
        """At least `seconds` of phrases one after another, with pauses of at most `pause_s` between them."""
        change = rng.random() < 0.2  # a conversation: the speaker may change at every phrase
        factor = rng.uniform(0.88, 1.14) if rng.random() < 0.5 else 1.0
        pieces: list[Speech] = [Speech(_silence(rng, 0.5), ())]
        # Each phrase at most once: a span that repeats itself invites the model to copy instead of listening.
        waiting: list[Recording] = []
        while sum(len(piece.samples) for piece in pieces) < seconds * SAMPLE_RATE:
            if change or not waiting:
                recordings = self.bank.by(self._voice(rng, language))
                waiting = rng.sample(recordings, len(recordings))
            speech = self.bank.speech(waiting.pop())
            pieces += [_faster(speech, factor) if factor != 1.0 else speech, Speech(_silence(rng, pause_s), ())]
        return _joined(pieces)

    def _voice(self, rng: random.Random, language: Language) -> Voice:
        voices = self.bank.of(language)
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


def heard(words: Sequence[SpokenWord], start: int, end: int, share: float = HEARD_SHARE) -> tuple[SpokenWord, ...]:
    """The words of which at least `share` lies between the samples `start` and `end`, placed from `start` on."""
    placed = []
    for word in words:
        first, last = max(word.start, start), min(word.end, end)
        if last - first >= share * max(1, word.end - word.start):
            placed.append(SpokenWord(word.text, first - start, last - start))
    return tuple(placed)


def _window(speech: Speech, language: Language, start: int, end: int) -> Utterance:
    words = heard(speech.words, start, end)
    return Utterance(speech.samples[start:end], language if words else None, words)


def _faster(speech: Speech, factor: float) -> Speech:
    words = tuple(SpokenWord(w.text, int(w.start / factor), int(w.end / factor)) for w in speech.words)
    return Speech(resampled(speech.samples, factor), words)


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
    """Names and terms as a user may hand them in: some that are said, some known, some never seen."""
    said = rng.sample(words, min(len(words), rng.randint(0, 3)))
    known = rng.choices((*ENGLISH_WORDS, *MANDARIN_ITEMS), k=rng.randint(0, 4))
    letters = "abcdefghijklmnopqrstuvwxyz"
    strange = ["".join(rng.choices(letters, k=rng.randint(2, 8))) for _ in range(rng.randint(0, 4))]
    terms = [*said, *known, *(name.capitalize() if rng.random() < 0.5 else name for name in strange)]
    rng.shuffle(terms)
    return rng.choice((" ", ", ", "; ")).join(terms)
