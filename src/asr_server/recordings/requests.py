"""Requests about a recording: how to transcribe it and how to return the text.

Requests are described only here. Forms, stored jobs and the Python client all have these fields, with the same types,
defaults, bounds and descriptions. `option` keeps what pydantic reads on the server. The client and the command line
import this module, so it imports nothing heavy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, Self

from annotated_types import Len

from asr_server.core.errors import InvalidInput
from asr_server.core.transcript import MAX_SPEAKERS
from asr_server.subtitle.cues import SpeakerStyle
from asr_server.text import languages

# The limit for a prompt, and for all hotwords together: the engine reads them again for each span.
MAX_TEXT_CHARS = 16_000
# More than any model knows.
MAX_LANGUAGES = 100

# OpenAI's name for a transcription model. Every server uses its loaded model for this name.
DEFAULT_MODEL = "whisper-1"

# The most voices, as with OpenAI, and the most bytes of all their audio files: 10 s each in most formats.
MAX_KNOWN_SPEAKERS = 4
MAX_CLIPS_BYTES = 6_000_000

# Reported to the caller and in the log if the loaded model has no use for a prompt and hotwords.
CONTEXT_IGNORED = "prompt and hotwords are ignored: the loaded model has no use for them"

_COUNTS = ("num_speakers", "min_speakers", "max_speakers")
_NAMES, _REFERENCES = "known_speaker_names", "known_speaker_references"
# Lone surrogates, which JSON may contain and UTF-8 may not.
_SURROGATES = re.compile("[\ud800-\udfff]")
# Also control characters and line breaks (Cc, Zl, Zp): names are written to files in which lines have a meaning.
_NOT_IN_NAMES = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


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
        return self in (ResponseFormat.SRT, ResponseFormat.VTT)

    @property
    def is_document(self) -> bool:
        return self in (ResponseFormat.MARKDOWN, ResponseFormat.DOCX)


class WordTimes(StrEnum):
    """The ways in which words get their times: none, spread over the speech, or by forced alignment."""

    NONE = "none"
    ESTIMATED = "estimated"
    ALIGNED = "aligned"


class VoiceDetection(StrEnum):
    """The use of the voice detector: which parts of a recording the model is given."""

    OFF = "off"  # all
    ADVISE = "advise"  # speech, and sound as loud as speech for a second, whose answers are kept only with support
    STRICT = "strict"  # speech


class ChannelMode(StrEnum):
    """The use of the channels of a recording: one signal, or a speaker each."""

    MIX = "mix"
    SPLIT = "split"


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


# The parts an answer may list: words in verbose_json and json, log-probabilities in json, the others in verbose_json.
Part = Literal["segment", "word", "cue", "logprobs"]
Mode = Literal["accurate", "fast"]
Term = Annotated[str, Len(1, 100)]


def option(default: Any, description: str | None = None, **bounds: Any) -> Any:
    """Return a field of a request, with its description for `/docs` and the bounds that pydantic checks."""
    return field(default=default, metadata={"description": description, **bounds})


@dataclass(frozen=True)
class ChunkingStrategy:
    """OpenAI's object: how the recording is cut at pauses. `auto` ignores the other fields; their defaults are
    OpenAI's."""

    type: Literal["auto", "server_vad"] = "auto"  # `auto` cuts by the server's own rules
    threshold: float = option(0.5, ge=0.05, le=1)  # speech probability from which a frame is speech
    prefix_padding_ms: int = option(300, ge=0, le=2_000)  # margin around speech
    silence_duration_ms: int = option(200, ge=32, le=5_000)  # the shortest pause that ends a segment


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """The options for how the text is written. By default, it stays as the model wrote it."""

    text_format: TextFormat = option(
        TextFormat.MODEL, "Numbers in digits (`written`), in words (`spoken`), or as the model has them."
    )
    profanity: Profanity = option(
        Profanity.KEEP, "Words of the server's lists: `mask` shows `f***`, `hide` shows `****`."
    )
    redact: tuple[PersonalData, ...] = option(
        (),
        "Personal data to replace by its kind, as `[EMAIL]`; comma-separated or repeated. Names and addresses are not "
        "found.",
        max_length=20,
    )

    @property
    def masks(self) -> bool:
        return self.profanity is not Profanity.KEEP or bool(self.redact)

    @property
    def chosen_text_options(self) -> tuple[str, ...]:
        return tuple(one.name for one in fields(TextOptions) if getattr(self, one.name) != one.default)


@dataclass(frozen=True, kw_only=True)
class RecordingOptions(TextOptions):
    """The options of all requests. Their order here is the order in `/docs`."""

    prompt: str = option("", "Text that helps recognition: names, terms, the topic.", max_length=MAX_TEXT_CHARS)
    hotwords: tuple[str, ...] = option((), "Words to listen for, comma-separated or repeated.")
    keywords: tuple[str, ...] = option((), "OpenAI's name for hotwords.")
    languages: tuple[str, ...] = option(
        (),
        "Languages that may be spoken, comma-separated or repeated: one of them is detected.",
        max_length=MAX_LANGUAGES,
    )
    temperature: float = option(0.0, "0 is greedy and repeatable; above that, sampling.", ge=0, le=1)
    chunking_strategy: ChunkingStrategy = option(
        ChunkingStrategy(), "`auto`, or a `server_vad` object: threshold and times of the cuts at pauses."
    )
    vad: VoiceDetection = option(
        VoiceDetection.STRICT, "What is sent to the model: speech, loud sound too (`advise`), all (`off`)."
    )
    strict: bool = option(False, "An error if any part of the recording was not heard.")
    start: float = option(0.0, "Seconds: spans that begin before are left out, for a transcript that continues.", ge=0)
    mode: Mode = option(
        "accurate", "Times of words and subtitles: `accurate` aligns them with the sound, `fast` estimates them."
    )
    speakers: bool = option(False, "Tell speakers apart. `diarized_json` means that too.")
    num_speakers: int | None = option(None, "How many people speak, where that is known.", ge=1, le=MAX_SPEAKERS)
    min_speakers: int | None = option(None, "How many people speak at least.", ge=1, le=MAX_SPEAKERS)
    max_speakers: int | None = option(None, "How many people speak at most.", ge=1, le=MAX_SPEAKERS)
    known_speaker_names: tuple[Annotated[str, Len(1, 64)], ...] = option(
        (), "Names of voices, one for each of the references, repeated.", max_length=MAX_KNOWN_SPEAKERS
    )
    # In a form, the audio files are data URLs.
    known_speaker_references: tuple[bytes, ...] = option(
        (),
        "Recordings of 2 to 10 s of one person each, as data URLs in base64, repeated.",
        max_length=MAX_KNOWN_SPEAKERS,
        json_schema_extra={"items": {"type": "string"}},
    )
    channel_mode: ChannelMode = option(
        ChannelMode.MIX, "`split`: each channel is a speaker; `mix`: channels are one signal."
    )


@dataclass(frozen=True, kw_only=True)
class CueLayout(RecordingOptions):
    """The options of requests whose answer can be subtitles in a layout that the caller chooses."""

    max_line_chars: int = option(42, "Widest line, in columns; a CJK character has two.", ge=2, le=200)
    max_lines: int = option(2, "Most lines of a cue.", ge=1, le=4)
    speaker_style: SpeakerStyle = option(
        SpeakerStyle.NAME, "With speakers: their names, `dash` for two of them in one cue with a line each, or `none`."
    )


@dataclass(frozen=True, kw_only=True)
class RecordingRequest(RecordingOptions):
    """The base of all requests about a recording. `checked` turns it into the one that is processed."""

    model: str = option(
        "", "A name from /v1/models; empty: the model that is loaded. Names of OpenAI's models mean that too."
    )
    language: str = option("", "ISO code, locale, English name, `auto` or empty (detect).")

    spoken_field: ClassVar[str] = "language"  # names the language of the recording

    @property
    def spoken_language(self) -> str | None:
        """The model's name for the language of the recording, None to detect the language."""
        name: str = getattr(self, self.spoken_field)
        return name or None

    @property
    def response_format(self) -> ResponseFormat:
        return ResponseFormat.JSON

    @property
    def listed(self) -> frozenset[Part]:
        return frozenset({"segment"})

    @property
    def reports_gaps(self) -> bool:
        return self.response_format is ResponseFormat.VERBOSE_JSON

    @property
    def context(self) -> str:
        return "\n".join(part for part in (self.prompt.strip(), ", ".join(self.hotwords)) if part)

    @property
    def needed_word_times(self) -> WordTimes:
        """The times of words that the answer needs, NONE if it shows none."""
        needed = not self.listed.isdisjoint(("word", "cue")) or self.response_format.is_subtitles or self.speakers
        if not needed and not (self.masks and self.reports_gaps):
            return WordTimes.NONE
        return WordTimes.ALIGNED if self.mode == "accurate" else WordTimes.ESTIMATED

    def checked(self) -> Self:
        """Return the request as it is processed: languages by the model's names, one list of hotwords, and `speakers`
        set even if only the format asks for them. Raises `InvalidInput` for fields that contradict each other."""
        hotwords = (*self.hotwords, *self.keywords)
        for name, words in (("hotwords", self.hotwords), ("keywords", self.keywords)):
            _refuse_characters(name, words, _SURROGATES, "it cannot be written in UTF-8")
        _refuse_characters(
            _NAMES, self.known_speaker_names, _NOT_IN_NAMES, "a name has no control characters and no line breaks"
        )
        if sum(map(len, hotwords)) > MAX_TEXT_CHARS:
            raise InvalidInput(f"The hotwords are longer than {MAX_TEXT_CHARS} characters together.", param="hotwords")
        speakers = self.speakers or self.response_format is ResponseFormat.DIARIZED_JSON
        self._check_speakers(is_wanted=speakers)
        language, several = self._languages()
        named: dict[str, Any] = {self.spoken_field: language or ""}
        return replace(
            self,
            model=self.model or DEFAULT_MODEL,
            hotwords=hotwords,
            keywords=(),
            redact=tuple(dict.fromkeys(self.redact)),
            speakers=speakers,
            languages=several,
            **named,
        )

    def _languages(self) -> tuple[str | None, tuple[str, ...]]:
        """Return the language to force, or None and the languages to choose from when detecting it."""
        language = _normalized(getattr(self, self.spoken_field), self.spoken_field)
        several = dict.fromkeys(_normalized(each, "languages") for each in self.languages)
        if not several or None in several:  # `auto` in the list means any language
            return language, ()
        if language is not None and language not in several:
            raise InvalidInput(f"'{self.spoken_field}' is not one of 'languages'.", param="languages")
        named = tuple(each for each in several if each)
        return (language or named[0], ()) if language or len(named) == 1 else (None, named)

    def _check_speakers(self, *, is_wanted: bool) -> None:
        """Raise `invalid_value` for contradictions. A field that has its default counts as left out, since generated
        clients send all fields."""
        if not is_wanted:
            names = (*_COUNTS, _NAMES, _REFERENCES, "speaker_style", "channel_mode")
            self._refuse(names, "needs speakers=true.")
        if self.channel_mode is ChannelMode.SPLIT:
            self._refuse(_COUNTS, "contradicts channel_mode=split: its channels are the speakers.")
        if self.num_speakers and (self.min_speakers or self.max_speakers):
            raise InvalidInput(
                "'num_speakers' is exact: leave out 'min_speakers' and 'max_speakers'.", param="num_speakers"
            )
        if self.min_speakers and self.max_speakers and self.min_speakers > self.max_speakers:
            raise InvalidInput("'min_speakers' is more than 'max_speakers'.", param="min_speakers")
        known, references = len(self.known_speaker_names), len(self.known_speaker_references)
        if known != references:
            raise InvalidInput(
                f"Every known speaker has a name and a reference, and there are {known} names and {references} "
                "references. Repeat the fields: a comma is part of a name.",
                param=_REFERENCES if references < known else _NAMES,
            )
        if len(set(self.known_speaker_names)) < known:
            raise InvalidInput("Two known speakers have the same name.", param=_NAMES)

    def _refuse(self, names: Sequence[str], reason: str) -> None:
        defaults = {one.name: one.default for one in fields(self)}
        for name in names:
            if name in defaults and getattr(self, name) != defaults[name]:
                raise InvalidInput(f"'{name}' {reason}", param=name)


@dataclass(frozen=True, kw_only=True)
class TranscriptionRequest(RecordingRequest):
    """`POST /v1/audio/transcriptions`."""

    response_format: ResponseFormat = option(ResponseFormat.JSON, "Format of the answer.")
    timestamp_granularities: tuple[Literal["word", "segment", "cue"], ...] = option(
        (), "`segment` (default), `word` and `cue`, one or more, with verbose_json."
    )
    include: tuple[Literal["logprobs"], ...] = option((), "`logprobs`, with json.")
    stream: bool = option(False, "Server-sent events; of srt and vtt the last one has the whole file.")
    return_timestamps: bool = option(False, "`words` with their times, with json and verbose_json.")
    task: Literal["transcription"] = "transcription"

    @property
    def listed(self) -> frozenset[Part]:
        asked: set[Part] = {*self.timestamp_granularities, *self.include}
        if not self.timestamp_granularities or not self.reports_gaps:
            asked.add("segment")
        return frozenset(asked | {"word"} if self.return_timestamps else asked)

    def checked(self) -> Self:
        wanted = self.response_format
        if self.include and wanted is not ResponseFormat.JSON:
            raise _unsupported("'include' needs response_format=json.", "include")
        if self.return_timestamps and wanted not in (ResponseFormat.JSON, ResponseFormat.VERBOSE_JSON):
            raise _unsupported("'return_timestamps' needs json or verbose_json.", "return_timestamps")
        # `segment` is the default, which some clients send along with every format.
        verbose_only = [name for name in self.timestamp_granularities if name != "segment"]
        if verbose_only and wanted is not ResponseFormat.VERBOSE_JSON:
            raise InvalidInput(
                f"'timestamp_granularities' with '{verbose_only[0]}' needs response_format=verbose_json.",
                param="timestamp_granularities",
            )
        if self.stream and "cue" in self.timestamp_granularities:
            raise _unsupported("'timestamp_granularities' with 'cue' is not streamed.", "timestamp_granularities")
        found = super().checked()
        found.check_shown()
        return found

    def check_shown(self) -> None:
        """Raise if the answer would not show the speakers, or personal data before it is recognised."""
        answer, is_hidden = self.response_format, self.speakers and "word" not in self.listed
        if is_hidden and (answer is ResponseFormat.JSON or (answer is ResponseFormat.TEXT and self.stream)):
            raise InvalidInput(
                f"{'A stream of ' if self.stream else ''}'{answer}' does not show speakers: ask for diarized_json or "
                "verbose_json, or for words with return_timestamps=true.",
                param="response_format",
            )
        if self.stream:
            self.check_redacted()
            if answer.is_document:
                raise _unsupported(f"'{answer}' is not streamed.", "stream")

    def check_redacted(self) -> None:
        """Raise `unsupported_value` if the text cannot be sent while the recording is transcribed."""
        if self.redact:
            raise _unsupported(
                "'redact' is not served in a stream: what was sent cannot be taken back when the rest of a number "
                "follows. Ask for a whole answer.",
                "redact",
            )


@dataclass(frozen=True, kw_only=True)
class SegmentsRequest(TranscriptionRequest):
    """`POST /v1/audio/transcriptions/stream`, whose events are segments, with their speakers, in any format."""

    def check_shown(self) -> None:
        if self.response_format not in (ResponseFormat.JSON, ResponseFormat.TEXT):
            raise _unsupported("Only json and text can be streamed here.", "response_format")
        if self.include:
            raise _unsupported("'include' is not served in this stream.", "include")
        self.check_redacted()


@dataclass(frozen=True, kw_only=True)
class SubtitleRequest(RecordingRequest, CueLayout):
    """`POST /v1/audio/subtitles`."""

    format: Literal["srt", "vtt"] = option("srt", "Kind of file.")
    task: Literal["subtitles"] = "subtitles"

    @property
    def response_format(self) -> ResponseFormat:
        return ResponseFormat(self.format)


@dataclass(frozen=True, kw_only=True)
class TranslationRequest(RecordingRequest, CueLayout):
    """`POST /v1/audio/translations`."""

    # The target language, not the language of the recording.
    language: str = option("en", "Target: any language, as a BCP 47 tag or an English name.")
    source_language: str = option("", "Language of the recording, as for transcriptions; empty: detect.")
    glossary: dict[Term, Term] = field(
        default_factory=dict,
        metadata={
            "description": 'How to translate terms, as JSON: {"term": "translation"}.',
            "max_length": 200,
            "json_schema_extra": {"default": {}},
        },
    )
    response_format: ResponseFormat = option(ResponseFormat.JSON, "Format of the answer.")
    bilingual: bool = option(False, "The source text along with the translation.")
    source_on_failure: bool = option(False, "Where translating fails, the source instead of an error.")
    task: Literal["translation"] = "translation"

    spoken_field: ClassVar[str] = "source_language"

    def checked(self) -> Self:
        wanted = self.response_format
        if wanted is ResponseFormat.DIARIZED_JSON or wanted.is_document:
            raise _unsupported(
                f"'{wanted}' is a format of transcriptions: a translation shows speakers in verbose_json.",
                "response_format",
            )
        if self.speakers and wanted is ResponseFormat.JSON:
            raise InvalidInput("'json' does not show speakers: ask for verbose_json.", param="response_format")
        if self.speaker_style is SpeakerStyle.DASH:
            raise _unsupported("'dash' is not served: a cue is translated as a whole.", "speaker_style")
        return replace(super().checked(), language=languages.find(self.language).tag)


Request = TranscriptionRequest | SubtitleRequest | TranslationRequest


@dataclass(frozen=True, slots=True)
class Result:
    """The answer as bytes. Fields that do not apply are None."""

    content: bytes
    media_type: str
    file_name: str | None = None  # of subtitle files and documents
    time_source: str | None = None  # where the times of subtitles come from: "aligned", "estimated" or "mixed"
    untranslated: int | None = None  # segments or cues of a translation that stayed in the source language
    translation_error: str | None = None  # the code of the error because of which nothing was translated
    duration_s: float | None = None  # seconds of audio, set by a client that has read it from an answer


def _unsupported(message: str, param: str) -> InvalidInput:
    return InvalidInput(message, code="unsupported_value", param=param)


def _normalized(value: str, param: str) -> str | None:
    try:
        return languages.normalize(value)
    except InvalidInput as error:
        error.param = param
        raise


def _refuse_characters(name: str, words: Sequence[str], refused: re.Pattern[str], reason: str) -> None:
    if any(map(refused.search, words)):
        raise InvalidInput(f"Invalid value for '{name}': Value error, {reason}.", param=name)
