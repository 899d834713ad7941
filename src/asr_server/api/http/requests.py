"""Checked fields to what the service is asked for, and what of them does not fit together. Reads no form."""

from __future__ import annotations

from asr_server.api.http.fields import (
    MAX_TEXT_CHARS,
    CueForm,
    RecordingForm,
    SubtitleForm,
    TranscriptionForm,
    TranslationForm,
)
from asr_server.core.errors import InvalidLanguage, InvalidValue, UnsupportedLanguage, UnsupportedValue
from asr_server.core.settings import Settings
from asr_server.service.output import subtitles
from asr_server.service.output.render import Shape
from asr_server.service.processor import SubtitleRequest, TranscriptionRequest, TranslationRequest
from asr_server.service.requests import ResponseFormat, TranscribeOptions, WordTimes, context
from asr_server.service.translations import TranslateOptions
from asr_server.subtitle.cue_config import CueConfig
from asr_server.text import languages, target_languages


def transcription_request(fields: TranscriptionForm, settings: Settings) -> TranscriptionRequest:
    """Raises `InvalidInput` for fields that contradict each other."""
    _check(fields)
    asked = fields.timestamp_granularities
    is_verbose = fields.response_format is ResponseFormat.VERBOSE_JSON
    shape = Shape(
        fields.response_format,
        logprobs=bool(fields.include),
        segments=not asked or "segment" in asked or not is_verbose,
        words="word" in asked or fields.return_timestamps,
        cues=subtitles.rules(settings),
    )
    needed = shape.words or fields.response_format.is_subtitles
    return TranscriptionRequest(_options(fields, languages.normalize(fields.language), needed=needed), shape)


def subtitle_request(fields: SubtitleForm, settings: Settings) -> SubtitleRequest:
    """Raises `InvalidInput`."""
    shape = Shape(ResponseFormat(fields.format), cues=_cues(fields, settings))
    return SubtitleRequest(_options(fields, languages.normalize(fields.language), needed=True), shape)


def translation_request(fields: TranslationForm, settings: Settings) -> TranslationRequest:
    """Raises `InvalidInput`."""
    try:
        source = languages.normalize(fields.source_language)
    except (InvalidLanguage, UnsupportedLanguage) as error:
        error.param = "source_language"
        raise
    translating = TranslateOptions(
        target=target_languages.find(fields.language),
        source=target_languages.find(source) if source else None,
        glossary=fields.glossary,
        keep_on_failure=fields.source_on_failure,
    )
    shape = Shape(fields.response_format, cues=_cues(fields, settings))
    options = _options(fields, source, needed=fields.response_format.is_subtitles)
    return TranslationRequest(options, translating, shape, fields.bilingual)


def _cues(fields: CueForm, settings: Settings) -> CueConfig:
    return subtitles.rules(settings, max_line_columns=fields.max_line_chars, max_lines=fields.max_lines)


def _options(fields: RecordingForm, language: str | None, *, needed: bool) -> TranscribeOptions:
    return TranscribeOptions(
        language=language,
        context=context(fields.prompt, _hotwords(fields)),
        temperature=fields.temperature,
        words=fields.mode.word_times if needed else WordTimes.NONE,
        cutting=fields.chunking_strategy.rules(),
    )


def _hotwords(fields: RecordingForm) -> list[str]:
    words = fields.hotwords + fields.keywords
    if sum(map(len, words)) > MAX_TEXT_CHARS:
        raise InvalidValue(f"The hotwords are longer than {MAX_TEXT_CHARS} characters together.", param="hotwords")
    return words


def check_streamed(fields: TranscriptionForm) -> None:
    """Raises `UnsupportedValue` for a format that no stream of events has."""
    if fields.response_format not in (ResponseFormat.JSON, ResponseFormat.TEXT):
        raise UnsupportedValue("Only json and text can be streamed.", param="response_format")


def _check(fields: TranscriptionForm) -> None:
    wanted = fields.response_format
    if fields.stream:
        check_streamed(fields)
    if fields.include and wanted is not ResponseFormat.JSON:
        raise UnsupportedValue("'include' needs response_format=json.", param="include")
    if fields.return_timestamps and wanted not in (ResponseFormat.JSON, ResponseFormat.VERBOSE_JSON):
        raise UnsupportedValue("'return_timestamps' needs json or verbose_json.", param="return_timestamps")
    # `segment` is the default, which some clients send along with every format: it asks for nothing more.
    if "word" in fields.timestamp_granularities and wanted is not ResponseFormat.VERBOSE_JSON:
        raise InvalidValue(
            "'timestamp_granularities' with 'word' needs response_format=verbose_json.", param="timestamp_granularities"
        )
