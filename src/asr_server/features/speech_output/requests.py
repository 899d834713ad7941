"""What a caller states about a text to speak, and what becomes of it. One vocabulary for all protocols."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from asr_server.features.speech_output.encoding.formats import SpeechFormat
from asr_server.features.speech_output.engines.protocol import VoiceSample

# OpenAI's name for a speech model. Every server takes it for what speaks there.
DEFAULT_MODEL = "tts-1"
DEFAULT_VOICE = "alloy"
MAX_INSTRUCTIONS_CHARS = 4_096


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SpeechManner:
    """How a text is to be spoken.

    `voice`: one of OpenAI's names or of the engine's. `language`: a BCP 47 tag or an English name, None for that of the
    text's script. `speed`: 2 takes half of the time at the same pitch. `instructions`: how to speak, for engines that
    follow them. `seed`: another one makes another answer where the engine samples. `spell_out`: numbers, dates and
    currency in words. `pause_ms`: between two sentences.
    """

    model: str = DEFAULT_MODEL
    voice: str = DEFAULT_VOICE
    language: str | None = None
    format: SpeechFormat = SpeechFormat.MP3
    speed: float = 1.0
    instructions: str = ""
    seed: int = 0
    spell_out: bool = True
    pause_ms: int = 250


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SpeechRequest(SpeechManner):
    """A text to speak. `sample`: a voice to imitate instead of `voice`."""

    text: str
    sample: VoiceSample | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechJobRequest(SpeechManner):
    """A text that is spoken as a job, with which it is stored."""

    task: Literal["speech"] = "speech"

    def of(self, text: str) -> SpeechRequest:
        """The request to speak that text in this manner."""
        manner = {one.name: getattr(self, one.name) for one in fields(SpeechManner)}
        return SpeechRequest(text=text, **manner)


@dataclass(frozen=True, slots=True)
class SentenceBegun:
    """A sentence is next. `start`, `end`: its characters in the request's text."""

    index: int
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class AudioChunk:
    """The next bytes of the answer."""

    sentence: int
    data: bytes


@dataclass(frozen=True, slots=True)
class SpeechTimings:
    """Where the time went, in milliseconds: waiting for the engine, inside it, in the encoder, until the first audio.

    The first three are sums over all sentences.
    """

    queue_ms: float = 0.0
    infer_ms: float = 0.0
    encode_ms: float = 0.0
    first_audio_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class SpeechDone:
    """All was spoken. `samples`: at 24 kHz, of the whole answer. `cut_short`: sentences that the engine stopped at its
    budget. `cached`: the answer was kept from an earlier request."""

    characters: int
    sentences: int
    samples: int
    cut_short: int = 0
    cached: bool = False
    timings: SpeechTimings = SpeechTimings()


SpeechEvent = SentenceBegun | AudioChunk | SpeechDone
