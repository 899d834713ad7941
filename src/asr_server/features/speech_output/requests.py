"""Requests to speak a text, and the events of their answers. One vocabulary for all protocols."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from asr_server.features.speech_output.encoding.formats import SpeechFormat
from asr_server.features.speech_output.engines.protocol import VoiceSample

# OpenAI's name for a speech model. Every server takes it for its own speech engine.
DEFAULT_MODEL = "tts-1"
DEFAULT_VOICE = "alloy"
MAX_INSTRUCTIONS_CHARS = 4_096


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SpeechManner:
    """The options of speaking a text."""

    model: str = DEFAULT_MODEL
    voice: str = DEFAULT_VOICE  # one of OpenAI's names or of the engine's
    language: str | None = None  # a BCP 47 tag or an English name; None: by the text's script
    format: SpeechFormat = SpeechFormat.MP3
    speed: float = 1.0  # 2 takes half of the time at the same pitch
    instructions: str = ""  # how to speak, for engines that follow them
    seed: int = 0  # another one makes another answer where the engine samples
    spell_out: bool = True  # speak numbers, dates and currency in words
    pause_ms: int = 250  # between two sentences


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SpeechRequest(SpeechManner):
    """A text to speak."""

    text: str
    sample: VoiceSample | None = None  # a voice to imitate instead of `voice`


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechJobRequest(SpeechManner):
    """The options of a text that is spoken as a job. They are stored with the job."""

    task: Literal["speech"] = "speech"

    def of(self, text: str) -> SpeechRequest:
        """Return the request to speak that text in this manner."""
        manner = {one.name: getattr(self, one.name) for one in fields(SpeechManner)}
        return SpeechRequest(text=text, **manner)


@dataclass(frozen=True, slots=True)
class SentenceBegun:
    """A sentence is next."""

    index: int
    text: str
    start: int  # its first character in the request's text
    end: int  # the character after its last


@dataclass(frozen=True, slots=True)
class AudioChunk:
    """The next bytes of the answer."""

    sentence: int
    data: bytes


@dataclass(frozen=True, slots=True)
class SpeechTimings:
    """The time that an answer took, in parts. The first three are sums over all sentences."""

    queue_ms: float = 0.0  # waiting for the engine
    infer_ms: float = 0.0  # inside the engine
    encode_ms: float = 0.0  # in the encoder
    first_audio_ms: float = 0.0  # until the first audio


@dataclass(frozen=True, slots=True)
class SpeechDone:
    """Everything was spoken."""

    characters: int
    sentences: int
    samples: int  # of the whole answer, at 24 kHz
    cut_short: int = 0  # sentences that the engine stopped at its budget
    timings: SpeechTimings = SpeechTimings()


SpeechEvent = SentenceBegun | AudioChunk | SpeechDone
