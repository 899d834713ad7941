"""Translates transcripts and cues. The source's times are kept; the endpoint gets only texts."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from loguru import logger

from asr_server.core.errors import InvalidInput, TranslationError, TranslationUnavailable
from asr_server.core.transcript import Segment, Transcript
from asr_server.features.translation.endpoint import ChatEndpoint
from asr_server.features.translation.prompt import TranslationConfig
from asr_server.features.translation.translator import Reason, Translated, TranslatedLine, translate
from asr_server.processes.caller_work import in_thread
from asr_server.recordings import render
from asr_server.recordings.pipeline import TranscriptTranslator
from asr_server.recordings.requests import ResponseFormat, Result, TranslationRequest
from asr_server.subtitle.cue_segmentation import relayout
from asr_server.subtitle.cues import Cue, CueConfig
from asr_server.text import languages, scripts
from asr_server.text.languages import LanguageTag

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from asr_server.core.settings import Settings

_TEXT_TEMPERATURE, _CUE_TEMPERATURE = 0.3, 0.1
_NOT_SET_UP = "No translation endpoint is set up: set {names} to an OpenAI-compatible endpoint and a model it serves."


@dataclass(frozen=True, slots=True)
class TranslatedLines:
    """The outcome of each segment of a transcript, or of each of its cues."""

    lines: Sequence[Translated]
    target: LanguageTag
    failure: TranslationError | None = None  # why nothing was translated, if the request accepts the source text

    @property
    def untranslated(self) -> int:
        return sum(line.kept for line in self.lines)


class Translations(TranscriptTranslator):
    """The endpoint and the bound on requests to it, shared by the whole process."""

    def __init__(self, settings: Settings, registry: CollectorRegistry | None = None) -> None:
        self._settings = settings
        self._endpoint = ChatEndpoint(settings, registry)

    def check(self) -> None:
        """Raise `TranslationUnavailable` if no endpoint is set up. Routes call it before they read a body."""
        values = {"OPENAI_BASE_URL": self._settings.openai_base_url, "TRANSLATE_MODEL": self._settings.translate_model}
        if missing := " and ".join(name for name, value in values.items() if not value):
            raise TranslationUnavailable(_NOT_SET_UP.format(names=missing))

    async def answer(self, transcript: Transcript, request: TranslationRequest, limit_s: float) -> Result:
        """Return the translated transcript in the requested format, within `limit_s`. Raises as `lines` does.

        Long computations run in a thread: live sessions share the event loop.
        """
        if not request.response_format.is_subtitles:
            texts = [(segment.text, segment.language or transcript.language) for segment in transcript.segments]
            found = await self.lines(texts, request, _TEXT_TEMPERATURE, limit_s)
            return await in_thread(render_transcript, transcript, found, request)
        config = render.cue_config(request)
        cues = await in_thread(render.cues, transcript, config)
        spoken = zip(cues, cue_languages(cues, transcript.segments), strict=True)
        texts = [(scripts.unbroken(cue.text), language) for cue, language in spoken]
        found = await self.lines(texts, request, _CUE_TEMPERATURE, limit_s)
        return await in_thread(render_cues, cues, found, request, config)

    async def lines(
        self, texts: Sequence[tuple[str, str]], request: TranslationRequest, temperature: float, limit_s: float
    ) -> TranslatedLines:
        """Translate texts into the target language within `limit_s`.

        Each text has its recognised language, by name or code, "" if unknown; a language that the request states takes
        precedence. Raises `TranslationUnavailable` and `translation_failed` (unless `source_on_failure`) if nothing
        could be translated. Single lines that could not be translated stay in the source language, with a reason.
        Cancelling closes the connections to the endpoint.
        """
        target = languages.find(request.language)
        lines = [TranslatedLine(text, _language(request.source_language or name)) for text, name in texts]
        try:
            self.check()
            return await self._translated(lines, TranslationConfig(target, temperature, limit_s, request.glossary))
        except TranslationError as failure:
            if not request.source_on_failure:
                raise
            return TranslatedLines([Translated(line.text, Reason.ENDPOINT) for line in lines], target, failure)

    async def texts(
        self, texts: Sequence[str], *, target_language: str, source_language: str = "", limit_s: float
    ) -> TranslatedLines:
        """Return the outcome of each text. `source_language`: "" if unknown.

        Raises as `lines`, and `invalid_language_format` or `UnsupportedLanguage` before anything is sent.
        """
        target = languages.find(target_language, param="target_language")
        source = languages.find(source_language, param="source_language") if source_language.strip() else None
        lines = [TranslatedLine(text, source) for text in texts]
        config = TranslationConfig(target, _TEXT_TEMPERATURE, limit_s)
        return await self._translated(lines, config)

    async def close(self) -> None:
        await self._endpoint.close()

    async def _translated(self, lines: Sequence[TranslatedLine], config: TranslationConfig) -> TranslatedLines:
        found = TranslatedLines(await translate(self._endpoint, lines, config), config.target)
        if found.untranslated:
            logger.warning("lines not translated", kept=found.untranslated, lines=len(lines))
        return found


def _language(name: str) -> LanguageTag | None:
    """Return the language of that name, or None if it is unknown: the endpoint then detects it."""
    try:
        return languages.find(name) if name else None
    except InvalidInput:
        return None


def cue_languages(cues: Sequence[Cue], segments: Sequence[Segment]) -> list[str]:
    """Return the language of each cue; "" if its words belong to segments in several languages."""
    spoken = [(word.start_ms, segment.language) for segment in segments for word in segment.words]
    starts = list(accumulate((start for start, _ in spoken), max))
    found = []
    for cue in cues:
        first = max(0, bisect_right(starts, cue.start_ms) - 1)
        named = {language for _, language in spoken[first : max(first + 1, bisect_left(starts, cue.end_ms))]}
        found.append(named.pop() if len(named) == 1 else "")
    return found


def laid_out(cues: Sequence[Cue], found: TranslatedLines, config: CueConfig, *, bilingual: bool = False) -> list[Cue]:
    """Return the translated cues in the same number and order, with the times of the source.

    The translation is in balanced lines, in place of the source or, if bilingual, below it. A cue without a translation
    is unchanged.
    """
    shown = list(cues)
    before = ""
    for i, (cue, line) in enumerate(zip(cues, found.lines, strict=True)):
        if line.translated and bilingual:
            shown[i] = replace(cue, translation=relayout(line.text, config))
        elif line.translated:
            shown[i] = replace(cue, text=relayout(line.text, config, cue.speaker if cue.speaker != before else ""))
        before = cue.speaker
    return shown


def translated(source: Transcript, found: TranslatedLines) -> Transcript:
    """Return the transcript in the target language, with the times and scores of the source.

    It has no words and no tokens, which belong to the source text. If nothing was translated, the source is returned.
    """
    if not any(line.translated for line in found.lines):
        return source
    segments = tuple(
        replace(segment, text=line.text, language=found.target.name, tokens=(), words=(), spoken=())
        if line.translated
        else segment
        for segment, line in zip(source.segments, found.lines, strict=True)
    )
    text = scripts.join(segment.text for segment in segments)
    return replace(source, text=text, language=found.target.name, segments=segments)


def render_cues(cues: Sequence[Cue], found: TranslatedLines, request: TranslationRequest, config: CueConfig) -> Result:
    """Return the cues as SRT or VTT, with new line breaks; if bilingual, the source above each translation."""
    shown = laid_out(cues, found, config, bilingual=request.bilingual)
    return _result(render.render_cues(shown, request.response_format), render.TEXT, found)


def render_transcript(source: Transcript, found: TranslatedLines, request: TranslationRequest) -> Result:
    """Return the transcript as json, verbose_json or text; if bilingual, the source text beside each translation."""
    shown = translated(source, found)
    if request.response_format is ResponseFormat.TEXT:
        text = _pairs(source, found) if request.bilingual else f"{render.text(shown)}\n"
        return _result(text.encode(), render.TEXT, found)
    is_verbose = request.response_format is ResponseFormat.VERBOSE_JSON
    content = (render.verbose if is_verbose else render.plain)(shown, request)
    # The language of the text, or the target language if there is no speech.
    language = shown.language or found.target.name
    code = found.target.tag if language == found.target.name else languages.code(language)
    content |= {"language": language.lower() if is_verbose else language, "language_code": code}
    content |= {"languages": [{"code": code}], "source_language": source.language, "untranslated": found.untranslated}
    if is_verbose:
        content |= {"task": "translate", "paragraphs": [one.listed() for one in render.paragraphs_of(shown)]}
        for segment, line, said in zip(content["segments"], found.lines, source.segments, strict=True):
            segment |= {"translated": line.translated, "reason": line.reason.value}
            segment["compression_ratio"] = said.compression_ratio  # it shows loops of the recognition
    if request.bilingual:
        content["source_text"] = source.text
        for segment, said in zip(content.get("segments", []), source.segments, strict=is_verbose):
            segment["source_text"] = said.text
    return _result(render.dump(content), render.JSON, found)


def _result(content: bytes, media_type: str, found: TranslatedLines) -> Result:
    error = found.failure.code if found.failure else None
    return Result(content, media_type, untranslated=found.untranslated, translation_error=error)


def _pairs(source: Transcript, found: TranslatedLines) -> str:
    """Return a block for each segment: the source, after its speaker if known, and below it its translation, if any."""
    sources = (scripts.dialogue([(segment.speaker or "", segment.text)]) for segment in source.segments)
    blocks = [
        f"{text}\n{line.text}\n" if line.translated else f"{text}\n"
        for text, line in zip(sources, found.lines, strict=True)
    ]
    return "\n".join(blocks) or "\n"
