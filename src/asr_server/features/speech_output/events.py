"""The events of a spoken text. One vocabulary for requests, sockets and jobs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from asr_server.features.speech_output.encoding.formats import SpeechFormat


@dataclass(frozen=True, slots=True)
class SentenceBegun:
    """The audio of a sentence is next."""

    index: int
    text: str
    start: int = 0  # its first character in the text of a request
    end: int = 0  # the character after its last
    start_samples: int = 0  # samples before the sentence, of all files of a session


@dataclass(frozen=True, slots=True)
class AudioChunk:
    """The next bytes of the audio."""

    data: bytes
    end_samples: int = 0  # samples up to the end of these bytes, of all files of a session


@dataclass(frozen=True, slots=True)
class SentenceEnded:
    """All samples of a sentence were made."""

    index: int
    samples: int  # of the sentence and the pause before it


@dataclass(frozen=True, slots=True)
class SpeechDone:
    """All of a request was spoken."""

    characters: int
    sentences: int
    samples: int  # of the whole answer, at 24 kHz
    cut_short: int = 0  # sentences that the engine stopped at its budget
    first_audio_ms: float = 0.0  # after the acceptance of the text


@dataclass(frozen=True, slots=True)
class SessionStarted:
    """A session has begun, with this format of its audio."""

    id: str
    format: SpeechFormat
    ignored: tuple[str, ...] = ()  # fields of the request that the engine does not use


@dataclass(frozen=True, slots=True)
class Flushed:
    """Everything before a flush was spoken, and its file is complete."""


@dataclass(frozen=True, slots=True)
class SpeechCancelled:
    """Nothing follows of the text before a cancel."""

    sentences: int  # of the session, that were sent whole
    samples: int  # of the session, that were sent


@dataclass(frozen=True, slots=True)
class SessionDone:
    """Everything of a session was spoken."""

    sentences: int  # of the session, that were sent whole
    samples: int  # of the session, that were sent


FileEvent = SentenceBegun | AudioChunk | SentenceEnded
SpeechEvent = FileEvent | SpeechDone
SessionEvent = FileEvent | SessionStarted | Flushed | SpeechCancelled | SessionDone
Emit = Callable[[SpeechEvent], Awaitable[None]]
