"""Words, segments and transcripts: the results between engine and rendering. Frozen."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

# At most this many speakers are distinguished: a further voice counts as the most similar of them.
MAX_SPEAKERS = 40


class TimeSource(StrEnum):
    """The way in which a word's times were found: by forced alignment, or estimated from the regions of speech."""

    ALIGNED = "aligned"
    ESTIMATED = "estimated"


@dataclass(frozen=True, slots=True)
class Word:
    """A written word and when it was said."""

    text: str
    start_ms: int
    end_ms: int
    source: TimeSource  # how its times were found
    # the geometric mean of the probabilities of its tokens (0..1), or None if the engine gives none
    confidence: float | None = None
    speaker: str | None = None  # a letter or a name, None if speakers are not distinguished
    bias: bool = False  # it is a word of the context; without the context, the model wrote another word
    masked: str | None = None  # the kind of text that was masked in it, None if nothing was

    def listed(self) -> dict[str, Any]:
        """Return the word as answers list it: with its punctuation, its times in seconds and their source, and its
        confidence, speaker, `bias` and `masked` if it has them."""
        listed = {
            "word": self.text,
            "start": self.start_ms / 1000,
            "end": self.end_ms / 1000,
            "source": self.source.value,
            "confidence": self.confidence,
            "speaker": self.speaker,
            "bias": self.bias or None,
            "masked": self.masked,
        }
        return {name: value for name, value in listed.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Token:
    """A generated token."""

    written: bytes  # its bytes, which may end inside a character
    logprob: float  # natural logarithm of its probability (<= 0)


class CoverageKind(StrEnum):
    """The outcome of a stretch of a recording."""

    WORDS = "words"  # the model wrote words for it
    SILENCE = "silence"  # it is quiet
    SOUND = "sound"  # music or noise: it is not quiet, and has no words
    UNHEARD = "unheard"  # words that are said in it may be missing


class UnheardReason(StrEnum):
    """The reason why words of a stretch may be missing."""

    DETECTOR = "detector"  # the voice detector found no speech in it, though it is as loud as speech
    LOOP = "loop"  # the model's answer repeated itself and was stopped
    BUDGET = "budget"  # the model's answer used up its tokens
    FAILED = "failed"  # the engine failed on it
    DAMAGED = "damaged"  # packets of the file could not be decoded


class RepairReason(StrEnum):
    """The reason why an answer was discarded and the audio transcribed again."""

    LOOP = "loop"  # it repeated itself
    BUDGET = "budget"  # it used up its tokens
    CONTEXT = "context"  # it repeated words of the prompt or hotwords that the sound does not support
    LANGUAGE = "language"  # it was in another language than the speech around it, and less likely than the new answer


@dataclass(frozen=True, slots=True)
class CoveragePart:
    """A stretch of a recording, and what became of it."""

    start_ms: int
    end_ms: int
    kind: CoverageKind
    reason: UnheardReason | None = None  # only if it is unheard
    confidence: float | None = None  # only if it is silence: 1 minus the mean probability of speech (0..1)

    def listed(self) -> dict[str, Any]:
        """Return the part as answers list it: with times in seconds, and without the fields that do not apply."""
        listed = {
            "kind": self.kind.value,
            "start": self.start_ms / 1000,
            "end": self.end_ms / 1000,
            "reason": self.reason,
            "confidence": self.confidence,
        }
        return {name: value for name, value in listed.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Segment:
    """The text of one span of speech. If speakers are distinguished, a span with several speakers is divided, and each
    segment has one."""

    start_ms: int
    end_ms: int
    text: str
    language: str  # the model's name for it, "" for no speech
    tokens: tuple[int, ...]  # ids of the generated tokens
    mean_logprob: float  # of the generated tokens, natural logarithm (<= 0)
    # one minus the highest speech probability that voice detection gave a frame of the span (0..1)
    no_speech_prob: float
    temperature: float = 0.0  # at which the text was generated
    cut_short: UnheardReason | None = None  # why the answer was stopped or failed; None if the model ended it
    repaired: RepairReason | None = None  # why an earlier answer was discarded and the audio transcribed again
    words: tuple[Word, ...] = ()
    spoken: tuple[Token, ...] = ()  # only the tokens of the text
    prompt_tokens: int = 0  # of the model's input
    audio_tokens: int = 0  # of the model's input
    speaker: str | None = None  # a letter or a name, None if speakers are not distinguished

    @property
    def complete(self) -> bool:
        return self.cut_short is None

    @property
    def compression_ratio(self) -> float:
        """UTF-8 bytes over their zlib-compressed size: high values mean repetition. 0 for no text."""
        raw = self.text.encode()
        return len(raw) / len(zlib.compress(raw)) if raw else 0.0


@dataclass(frozen=True, slots=True)
class SpeakerRun:
    """Consecutive text of one speaker, white space included."""

    speaker: str | None  # None if it is not known
    text: str


@dataclass(frozen=True, slots=True)
class Timings:
    """The parts of the time that a request took. Times of spans overlap."""

    decode_ms: float = 0.0
    queue_ms: float = 0.0  # the longest wait of a span in the queue
    infer_ms: float = 0.0  # the sum over all spans: it may be longer than the request
    load_ms: float = 0.0  # the longest wait of a span for the model to load

    def with_span(self, queue_s: float, infer_s: float, load_s: float) -> Timings:
        """Add the times of one more span: spans wait at the same time, and their work adds up."""
        queue_ms, load_ms = max(self.queue_ms, 1000 * queue_s), max(self.load_ms, 1000 * load_s)
        return Timings(self.decode_ms, queue_ms, self.infer_ms + 1000 * infer_s, load_ms)


@dataclass(frozen=True, slots=True)
class Transcript:
    """The text of one recording."""

    text: str
    language: str  # the model's name for it ("English"), or "" for no speech
    duration_ms: int
    segments: tuple[Segment, ...]
    timings: Timings = Timings()
    warnings: tuple[str, ...] = ()  # which parts of the request had no effect, and why
    coverage: tuple[CoveragePart, ...] = ()  # the parts of the recording, in order and without gaps
    peaks: tuple[float, ...] = ()  # the loudness of parts of equal length, 0 to 1, if the answer shows them

    def covered_ms(self, kind: CoverageKind) -> int:
        """Return the milliseconds of that kind. All kinds together add up to the duration."""
        return sum(part.end_ms - part.start_ms for part in self.coverage if part.kind is kind)

    @property
    def words(self) -> list[Word]:
        return [word for segment in self.segments for word in segment.words]
