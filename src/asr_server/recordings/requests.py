"""Requests about a recording: how to transcribe it and how to return the text. One vocabulary for all.

Forms, jobs, the command line and the client library build these; nothing here is resolved from the server's settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from asr_server.core.errors import InvalidInput
from asr_server.subtitle.cues import SpeakerStyle

# Of a prompt, and of all hotwords together: the engine reads them again for each span.
MAX_TEXT_CHARS = 16_000
# More than any model knows.
MAX_LANGUAGES = 100

# OpenAI's name for a transcription model. Every server takes it for the model that is loaded.
DEFAULT_MODEL = "whisper-1"

# As many voices as OpenAI takes, and what their audio files may have together: 10 s each in most formats.
MAX_KNOWN_SPEAKERS = 4
MAX_CLIPS_BYTES = 6_000_000

# Told to the caller and in the log, where the loaded model has no use for them.
CONTEXT_IGNORED = "prompt and hotwords are ignored: the loaded model has no use for them"


class ResponseFormat(StrEnum):
    """The formats of an answer."""

    JSON = "json"
    TEXT = "text"
    SRT = "srt"
    VTT = "vtt"
    VERBOSE_JSON = "verbose_json"
    DIARIZED_JSON = "diarized_json"
    MARKDOWN = "markdown"
    DOCX = "docx"

    @property
    def is_subtitles(self) -> bool:
        """True if the answer is a file of cues."""
        return self in (ResponseFormat.SRT, ResponseFormat.VTT)

    @property
    def is_document(self) -> bool:
        """True if the answer is a file of paragraphs to read."""
        return self in (ResponseFormat.MARKDOWN, ResponseFormat.DOCX)


class WordTimes(StrEnum):
    """The ways in which words get their times: none, spread over the speech, or by forced alignment."""

    NONE = "none"
    ESTIMATED = "estimated"
    ALIGNED = "aligned"


@dataclass(frozen=True, slots=True)
class ServerVad:
    """OpenAI's `server_vad`: cut at every pause. The defaults are OpenAI's."""

    threshold: float = 0.5  # speech probability (0..1) from which a frame is speech
    prefix_padding_ms: int = 300  # margin around speech
    silence_duration_ms: int = 200  # the shortest pause that ends a segment


class VoiceDetection(StrEnum):
    """The use of the voice detector: which parts of a recording the model is given."""

    OFF = "off"  # all
    ADVISE = "advise"  # speech, and what is as loud as speech for a second; of that, answers with support are kept
    STRICT = "strict"  # speech


class ChannelMode(StrEnum):
    """The use of the channels of a recording: one signal, or a speaker each."""

    MIX = "mix"
    SPLIT = "split"


@dataclass(frozen=True, slots=True)
class KnownSpeaker:
    """A voice that the caller names."""

    name: str
    clip: bytes  # an audio file in which that person alone speaks


@dataclass(frozen=True, slots=True)
class SpeakerOptions:
    """The options of distinguishing speakers."""

    at_least: int = 1  # the least number of speakers
    at_most: int | None = None  # the largest number of speakers, None if it is not known
    known: tuple[KnownSpeaker, ...] = ()


class TextFormat(StrEnum):
    """The ways in which numbers are written."""

    MODEL = "model"  # as the model writes them
    WRITTEN = "written"  # in digits
    SPOKEN = "spoken"  # in words


class Profanity(StrEnum):
    """The ways in which words of the operator's lists are shown."""

    KEEP = "keep"
    MASK = "mask"  # the first letter, and an asterisk for each of the others
    HIDE = "hide"  # four asterisks


class PersonalData(StrEnum):
    """The kinds of personal data that are recognised by their form."""

    EMAIL = "email"
    IP = "ip"
    IBAN = "iban"
    CARD = "card"
    PHONE = "phone"
    NUMBER = "number"


@dataclass(frozen=True, slots=True)
class TextOptions:
    """The options of one request. By default the text is the model's."""

    text_format: TextFormat = TextFormat.MODEL
    profanity: Profanity = Profanity.KEEP
    redact: tuple[PersonalData, ...] = ()

    @property
    def masks(self) -> bool:
        """True if parts of the text may be replaced because of what they say."""
        return self.profanity is not Profanity.KEEP or bool(self.redact)

    @property
    def asked(self) -> Iterator[str]:
        """Yield the names of the options that do not have their defaults."""
        if self.text_format is not TextFormat.MODEL:
            yield "text_format"
        if self.profanity is not Profanity.KEEP:
            yield "profanity"
        if self.redact:
            yield "redact"

    def check_streamed(self) -> None:
        """Raise `unsupported_value` if the text cannot be sent while the recording is transcribed."""
        if self.redact:
            raise InvalidInput(
                "'redact' is not served in a stream: what was sent cannot be taken back when the rest of a number "
                "follows. Ask for a whole answer.",
                code="unsupported_value",
                param="redact",
            )


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """The form in which the text is returned.

    The last three lay out the cues of subtitle requests and translations; transcription forms have no field for them.
    """

    response_format: ResponseFormat = ResponseFormat.JSON
    segments: bool = True  # listed in verbose_json
    words: bool = False  # listed in verbose_json and json
    cues: bool = False  # listed in verbose_json
    logprobs: bool = False  # of each token, with json
    max_line_chars: int = 42  # widest line in columns; a CJK character has two
    max_lines: int = 2  # of a cue
    speaker_style: SpeakerStyle = SpeakerStyle.NAME  # how cues show speakers

    @property
    def reports_gaps(self) -> bool:
        """True if the answer names the parts of the recording that were not heard."""
        return self.response_format is ResponseFormat.VERBOSE_JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingRequest:
    """The options of all requests about a recording."""

    model: str = DEFAULT_MODEL  # a name from /v1/models
    language: str | None = None  # the model's name of the spoken language ("German"), None to detect it
    languages: tuple[str, ...] = ()  # the model's names of those that it is detected among; empty: all
    prompt: str = ""  # text that helps recognition
    hotwords: tuple[str, ...] = ()  # names and terms that help recognition
    temperature: float = 0.0  # 0 is greedy and repeatable
    chunking: ServerVad | None = None  # None cuts the recording by the server's own rules
    vad: VoiceDetection = VoiceDetection.STRICT
    start_s: float = 0.0  # spans that begin before are left out: an earlier answer has them
    strict: bool = False  # a part of the recording that was not heard is an error
    word_times: WordTimes = WordTimes.ALIGNED  # ALIGNED or ESTIMATED, for answers that have times of words
    speakers: SpeakerOptions | None = None  # None does not distinguish speakers
    channel_mode: ChannelMode = ChannelMode.MIX
    text_options: TextOptions = field(default_factory=TextOptions)  # how the text is written
    output: OutputOptions = field(default_factory=OutputOptions)

    @property
    def context(self) -> str:
        """The text of the model's system turn."""
        return context(self.prompt, self.hotwords)

    @property
    def needed_word_times(self) -> WordTimes:
        """NONE where the answer has no times of words."""
        output = self.output
        needed = output.words or output.cues or output.response_format.is_subtitles or self.speakers is not None
        lists_masked = self.text_options.masks and output.response_format is ResponseFormat.VERBOSE_JSON
        return self.word_times if needed or lists_masked else WordTimes.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptionRequest(RecordingRequest):
    """`POST /v1/audio/transcriptions`."""

    stream: bool = False  # text is returned as it is decoded
    task: Literal["transcription"] = "transcription"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtitleRequest(RecordingRequest):
    """`POST /v1/audio/subtitles`: an SRT or VTT file."""

    output: OutputOptions = field(default_factory=lambda: OutputOptions(ResponseFormat.SRT))
    task: Literal["subtitles"] = "subtitles"


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationRequest(RecordingRequest):
    """`POST /v1/audio/translations`. The language of the recording is `language`, as in other requests."""

    target_language: str = "en"  # a BCP 47 tag ("pt-BR")
    glossary: Mapping[str, str] = field(default_factory=dict)  # terms and their translations
    bilingual: bool = False  # the source text is returned along with the translation
    source_on_failure: bool = False  # where the translation fails, the source text is returned instead of an error
    task: Literal["translation"] = "translation"


Request = TranscriptionRequest | SubtitleRequest | TranslationRequest


@dataclass(frozen=True, slots=True)
class Result:
    """The answer as bytes. What does not apply is None."""

    content: bytes
    media_type: str
    file_name: str | None = None  # of subtitle files and documents
    time_source: str | None = None  # where the times of subtitles come from: "aligned", "estimated" or "mixed"
    untranslated: int | None = None  # segments or cues of a translation that stayed in the source language
    translation_error: str | None = None  # the code of the error for which nothing was translated
    duration_s: float | None = None  # seconds of audio, where a client has read it from an answer


def context(prompt: str, hotwords: tuple[str, ...] | list[str]) -> str:
    """Return the system-turn text of a free prompt and a list of words."""
    return "\n".join(part for part in (prompt.strip(), ", ".join(hotwords)) if part)
