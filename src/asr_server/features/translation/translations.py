"""Translates transcripts and cues. The times are those of the source; the endpoint gets texts alone."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from loguru import logger

from asr_server.core.errors import InvalidLanguage, TranslationError, TranslationUnavailable, UnsupportedLanguage
from asr_server.core.transcript import Segment, Transcript
from asr_server.features.translation.endpoint import ChatEndpoint, EndpointConfig, PromptOutcome
from asr_server.features.translation.lines import Reason, Translated, TranslatedLine, TranslationConfig
from asr_server.features.translation.translator import Translator
from asr_server.ops.metric_spec import MetricKind, MetricSample, MetricSpec
from asr_server.processes.caller_work import in_thread
from asr_server.recordings import render
from asr_server.recordings.pipeline import TranscriptTranslator
from asr_server.recordings.requests import ResponseFormat, Result, TranslationRequest
from asr_server.subtitle.cue_segmentation import relayout
from asr_server.subtitle.cues import Cue, CueConfig
from asr_server.text import languages, scripts
from asr_server.text.languages import LanguageTag

if TYPE_CHECKING:
    from asr_server.core.settings import Settings
    from asr_server.services import Services

_NOT_SET_UP = "No translation endpoint is set up: set {names} to an OpenAI-compatible endpoint and a model it serves."


@dataclass(frozen=True, slots=True)
class TranslatedCues:
    """Cues and their translations."""

    source: tuple[Cue, ...]
    lines: tuple[Translated, ...]  # the outcome of each cue of `source`
    target: LanguageTag
    failure: TranslationError | None = None  # why nothing was translated, if the caller wants the source text then

    @property
    def untranslated(self) -> int:
        """The number of cues that could not be translated."""
        return sum(line.kept for line in self.lines)

    def laid_out(self, config: CueConfig, *, bilingual: bool = False) -> list[Cue]:
        """Return the cues in the same number and order, with the times of the source.

        The translation is in balanced lines, in place of the source or below it. A cue without a translation stays as
        it was.
        """
        cues = list(self.source)
        before = ""
        for i, (cue, line) in enumerate(zip(self.source, self.lines, strict=True)):
            if line.translated and bilingual:
                cues[i] = replace(cue, translation=relayout(line.text, config))
            elif line.translated:
                cues[i] = replace(cue, text=relayout(line.text, config, cue.speaker if cue.speaker != before else ""))
            before = cue.speaker
        return cues


@dataclass(frozen=True, slots=True)
class TranslatedTranscript:
    """A transcript and the translations of its segments."""

    source: Transcript
    lines: tuple[Translated, ...]  # the outcome of each segment of `source`
    target: LanguageTag
    failure: TranslationError | None = None  # as in `TranslatedCues`

    @property
    def untranslated(self) -> int:
        """The number of segments that could not be translated."""
        return sum(line.kept for line in self.lines)

    @property
    def transcript(self) -> Transcript:
        """The transcript in the target language, with the times and scores of the source.

        It has no words and tokens, because those belong to the source text. If nothing was translated, it is the
        source.
        """
        if not any(line.translated for line in self.lines):
            return self.source
        segments = tuple(
            replace(segment, text=line.text, language=self.target.name, tokens=(), words=(), spoken=())
            if line.translated
            else segment
            for segment, line in zip(self.source.segments, self.lines, strict=True)
        )
        text = scripts.join(segment.text for segment in segments)
        return replace(self.source, text=text, language=self.target.name, segments=segments)


TRANSLATION_QUESTIONS = MetricSpec(
    "asr_translation_questions_total",
    MetricKind.COUNTER,
    "Requests to the translation endpoint, by outcome.",
    ("outcome",),
)


def translation_gauges(services: Services) -> Iterable[MetricSample]:
    """Yield the number of requests to the endpoint."""
    prompts = services.of(Translations).questions
    yield MetricSample(TRANSLATION_QUESTIONS, {(outcome,): prompts.get(outcome, 0) for outcome in PromptOutcome})


class Translations(TranscriptTranslator):
    """The endpoint and the bound on requests to it, shared by the whole process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._missing = [
            name
            for name, value in (
                ("OPENAI_BASE_URL", settings.openai_base_url),
                ("TRANSLATE_MODEL", settings.translate_model),
            )
            if not value
        ]
        self._endpoint = ChatEndpoint(_config(settings))
        self._translator = Translator(
            self._endpoint, batch=settings.translate_batch, concurrency=settings.translate_concurrency
        )

    def check(self) -> None:
        """Raise `TranslationUnavailable` if no endpoint is set up. Routes call it before they read a body."""
        if self._missing:
            raise TranslationUnavailable(_NOT_SET_UP.format(names=" and ".join(self._missing)))

    async def answer(self, transcript: Transcript, request: TranslationRequest, limit_s: float) -> Result:
        """Return the translated transcript as the request says, within `limit_s`. Raises as `cues` does.

        What takes long is computed in a thread: live sessions share the event loop.
        """
        if not request.output.response_format.is_subtitles:
            text = await self.transcript(transcript, request, limit_s=limit_s)
            return await in_thread(render_transcript, text, request)
        config = render.cue_config(self._settings, request.output)
        cues = await in_thread(render.cues, transcript, config)
        spoken = cue_languages(cues, transcript.segments)
        lines = await self.cues(cues, request, limit_s=limit_s, languages=spoken)
        return await in_thread(render_cues, lines, request, config)

    async def cues(
        self, cues: Sequence[Cue], request: TranslationRequest, *, limit_s: float, languages: Sequence[str] = ()
    ) -> TranslatedCues:
        """Translate the cues into the target language within `limit_s`.

        `languages`: the recognised language of each cue, by name or code, "" if unknown; or empty if none is known.
        Raises `TranslationUnavailable` and `TranslationFailed` (unless `source_on_failure`) if nothing at all could be
        translated. Single cues that could not be translated stay in the source language, with a reason. Cancelling
        closes the connections to the endpoint.
        """
        known = languages or [""] * len(cues)
        texts = [(scripts.unbroken(cue.text), name) for cue, name in zip(cues, known, strict=True)]
        order = self._order(request, self._settings.translate_srt_temperature, limit_s)
        lines, failure = await self._translate(texts, request, order)
        return TranslatedCues(tuple(cues), lines, order.target, failure)

    async def transcript(
        self, transcript: Transcript, request: TranslationRequest, *, limit_s: float
    ) -> TranslatedTranscript:
        """Translate the transcript's segments into the target language. Raises as `cues`."""
        texts = [(segment.text, segment.language or transcript.language) for segment in transcript.segments]
        order = self._order(request, self._settings.translate_temperature, limit_s)
        lines, failure = await self._translate(texts, request, order)
        return TranslatedTranscript(transcript, lines, order.target, failure)

    async def texts(
        self, texts: Sequence[str], *, target_language: str, source_language: str = "", limit_s: float
    ) -> tuple[list[Translated], LanguageTag]:
        """Return the outcome of each text, and the language they were translated to. `source_language`: "" if unknown.

        Raises as `cues`, and `InvalidLanguage` or `UnsupportedLanguage` before anything is sent.
        """
        target = languages.find(target_language, param="target_language")
        source = languages.find(source_language, param="source_language") if source_language.strip() else None
        self.check()
        order = TranslationConfig(target, self._settings.translate_temperature, limit_s)
        return await self._translated([TranslatedLine(text, source) for text in texts], order), target

    @property
    def questions(self) -> Mapping[PromptOutcome, int]:
        """The number of requests to the endpoint so far, by outcome."""
        return self._endpoint.outcomes

    async def close(self) -> None:
        """Close the connections."""
        await self._endpoint.close()

    def _order(self, request: TranslationRequest, temperature: float, limit_s: float) -> TranslationConfig:
        target = languages.find(request.target_language)
        return TranslationConfig(target, temperature, limit_s, request.glossary)

    async def _translate(
        self, texts: Iterable[tuple[str, str]], request: TranslationRequest, order: TranslationConfig
    ) -> tuple[tuple[Translated, ...], TranslationError | None]:
        """Translate `texts`, each with the name of its recognised language, which a stated language overrides."""
        lines = [TranslatedLine(text, _language(request.language or name)) for text, name in texts]
        try:
            self.check()
            return tuple(await self._translated(lines, order)), None
        except TranslationError as failure:
            if not request.source_on_failure:
                raise
            return tuple(Translated(line.text, False, Reason.ENDPOINT) for line in lines), failure

    async def _translated(self, lines: Sequence[TranslatedLine], order: TranslationConfig) -> list[Translated]:
        found = await self._translator.translate(lines, order)
        kept = sum(line.kept for line in found)
        if kept:
            logger.warning("lines not translated", kept=kept, lines=len(found))
        return found


def _config(settings: Settings) -> EndpointConfig:
    key = settings.openai_api_key
    return EndpointConfig(
        base_url=str(settings.openai_base_url or ""),
        model=settings.translate_model,
        api_key=key.get_secret_value().strip() if key else "",
        timeout_s=settings.translate_timeout,
        concurrency=settings.translate_concurrency,
    )


def _language(name: str) -> LanguageTag | None:
    """Return the language of that name, or None if it is unknown: the endpoint then detects it."""
    try:
        return languages.find(name) if name else None
    except (InvalidLanguage, UnsupportedLanguage):
        return None


def cue_languages(cues: Sequence[Cue], segments: Sequence[Segment]) -> list[str]:
    """The language of each cue; "" if its words are of segments in several languages."""
    spoken = [(word.start_ms, segment.language) for segment in segments for word in segment.words]
    starts = list(accumulate((start for start, _ in spoken), max))
    found = []
    for cue in cues:
        first = max(0, bisect_right(starts, cue.start_ms) - 1)
        named = {language for _, language in spoken[first : max(first + 1, bisect_left(starts, cue.end_ms))]}
        found.append(named.pop() if len(named) == 1 else "")
    return found


def render_cues(found: TranslatedCues, request: TranslationRequest, cue_config: CueConfig) -> Result:
    """The cues as SRT or VTT, with new line breaks; where bilingual, the source above each translation."""
    cues = found.laid_out(cue_config, bilingual=request.bilingual)
    return _result(render.render_cues(cues, request.output.response_format), render.TEXT, found)


def render_transcript(found: TranslatedTranscript, request: TranslationRequest) -> Result:
    """The transcript as json, verbose_json or text; where bilingual, the source text beside each translation."""
    if request.output.response_format is ResponseFormat.TEXT:
        text = _pairs(found) if request.bilingual else f"{render.text(found.transcript)}\n"
        return _result(text.encode(), render.TEXT, found)
    is_verbose = request.output.response_format is ResponseFormat.VERBOSE_JSON
    content = (render.verbose if is_verbose else render.plain)(found.transcript, request.output) | _facts(found)
    if is_verbose:
        content["paragraphs"] = [one.listed() for one in render.paragraphs_of(found.transcript)]
        content |= {"task": "translate", "language": content["language"].lower()}
        for segment, line, source in zip(content["segments"], found.lines, found.source.segments, strict=True):
            segment |= {"translated": line.translated, "reason": line.reason.value}
            segment["compression_ratio"] = source.compression_ratio  # it shows loops of the recognition
    if request.bilingual:
        content["source_text"] = found.source.text
        for segment, source in zip(content.get("segments", []), found.source.segments, strict=is_verbose):
            segment["source_text"] = source.text
    return _result(render.dump(content), render.JSON, found)


def _result(content: bytes, media_type: str, found: TranslatedCues | TranslatedTranscript) -> Result:
    error = found.failure.code if found.failure else None
    return Result(content, media_type, untranslated=found.untranslated, translation_error=error)


def _facts(found: TranslatedTranscript) -> dict[str, Any]:
    """The language of the text, which for silence is the target's, and how much of it could not be translated."""
    language = found.transcript.language or found.target.name
    is_target = language == found.target.name
    code = found.target.tag if is_target else languages.code(language)
    return {
        "language": language,
        "language_code": code,
        "languages": [{"code": code}],
        "source_language": found.source.language,
        "untranslated": found.untranslated,
    }


def _pairs(found: TranslatedTranscript) -> str:
    """A block for each segment: the source, behind its speaker if that is known, and the translation below it if there
    is one."""
    sources = (scripts.dialogue([(segment.speaker or "", segment.text)]) for segment in found.source.segments)
    blocks = [
        f"{source}\n{line.text}\n" if line.translated else f"{source}\n"
        for source, line in zip(sources, found.lines, strict=True)
    ]
    return "\n".join(blocks) or "\n"
