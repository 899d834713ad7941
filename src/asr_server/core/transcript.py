"""Words, segments and transcripts: the results between engine and rendering. Frozen."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import StrEnum


class TimeSource(StrEnum):
    """How a word's times were found: by forced alignment, or estimated from the regions of speech."""

    ALIGNED = "aligned"
    ESTIMATED = "estimated"


@dataclass(frozen=True, slots=True)
class Word:
    """One written word and when it was said.

    `confidence`: the geometric mean of the probabilities of its tokens (0..1), or None if the engine gives none.
    `speaker`: a letter or a name, None where speakers are not told apart.
    """

    text: str
    start_ms: int
    end_ms: int
    source: TimeSource
    confidence: float | None = None
    speaker: str | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """The bytes of one generated token, which may end inside a character, and its natural log-probability (<= 0)."""

    written: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class Segment:
    """The text of one span of speech. Where speakers are told apart, of one speaker: a span of several is divided.

    `mean_logprob` is the mean natural log-probability of the generated tokens (<= 0). `no_speech_prob` (0..1) is one
    minus the highest speech probability that voice detection gave a frame of the span. `complete` is False when
    decoding ended because the token budget was used up, not because the model ended its answer. `spoken`: the tokens
    of the text alone. `prompt_tokens` and `audio_tokens`: the model's input.
    """

    start_ms: int
    end_ms: int
    text: str
    language: str
    tokens: tuple[int, ...]
    mean_logprob: float
    no_speech_prob: float
    temperature: float = 0.0
    complete: bool = True
    words: tuple[Word, ...] = ()
    spoken: tuple[Token, ...] = ()
    prompt_tokens: int = 0
    audio_tokens: int = 0
    speaker: str | None = None

    @property
    def compression_ratio(self) -> float:
        """UTF-8 bytes over their zlib-compressed size: high values mean repetition. 0 for no text."""
        raw = self.text.encode()
        return len(raw) / len(zlib.compress(raw)) if raw else 0.0


@dataclass(frozen=True, slots=True)
class SpeakerRun:
    """Text of one speaker without another's between, white space included. `speaker`: None where it is not known."""

    speaker: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of a request went, in milliseconds.

    `queue_ms` and `load_ms` are the longest waits of a span, in the queue and for the model to load; `infer_ms` is the
    sum over all spans, which overlap: it may be longer than the request.
    """

    decode_ms: float = 0.0
    queue_ms: float = 0.0
    infer_ms: float = 0.0
    load_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Transcript:
    """The text of one recording. `language` is the model's name for it ("English"), or "" for no speech.

    `warnings`: what of the request had no effect, and why.
    """

    text: str
    language: str
    duration_ms: int
    segments: tuple[Segment, ...]
    timings: Timings = Timings()
    warnings: tuple[str, ...] = ()

    @property
    def words(self) -> list[Word]:
        return [word for segment in self.segments for word in segment.words]
