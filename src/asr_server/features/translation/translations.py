"""Translates transcripts and cues. The times are those of the source; the endpoint gets texts alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from loguru import logger

from asr_server.core.errors import InvalidLanguage, TranslationError, TranslationUnavailable, UnsupportedLanguage
from asr_server.core.transcript import Transcript
from asr_server.features.translation.endpoint import ChatEndpoint, EndpointConfig, PromptOutcome
from asr_server.features.translation.lines import Line, Reason, Translated, TranslationConfig
from asr_server.features.translation.translator import Translator
from asr_server.recordings.requests import TranslationRequest
from asr_server.subtitle.cue_config import CueConfig
from asr_server.subtitle.cues import Cue
from asr_server.subtitle.layout import relayout
from asr_server.text import joining, target_languages
from asr_server.text.target_languages import LanguageTag

if TYPE_CHECKING:
    from asr_server.core.settings import Settings

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
        text = joining.join(segment.text for segment in segments)
        return replace(self.source, text=text, language=self.target.name, segments=segments)


class Translations:
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
        texts = [(joining.unbroken(cue.text), name) for cue, name in zip(cues, known, strict=True)]
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
        target = target_languages.find(target_language, param="target_language")
        source = target_languages.find(source_language, param="source_language") if source_language.strip() else None
        self.check()
        order = TranslationConfig(target, self._settings.translate_temperature, limit_s)
        return await self._translated([Line(text, source) for text in texts], order), target

    @property
    def questions(self) -> Mapping[PromptOutcome, int]:
        """The number of requests to the endpoint so far, by outcome."""
        return self._endpoint.outcomes

    async def close(self) -> None:
        """Close the connections."""
        await self._endpoint.close()

    def _order(self, request: TranslationRequest, temperature: float, limit_s: float) -> TranslationConfig:
        target = target_languages.find(request.target_language)
        return TranslationConfig(target, temperature, limit_s, request.glossary)

    async def _translate(
        self, texts: Iterable[tuple[str, str]], request: TranslationRequest, order: TranslationConfig
    ) -> tuple[tuple[Translated, ...], TranslationError | None]:
        """Translate `texts`, each with the name of its recognised language, which a stated language overrides."""
        lines = [Line(text, _language(request.language or name)) for text, name in texts]
        try:
            self.check()
            return tuple(await self._translated(lines, order)), None
        except TranslationError as failure:
            if not request.source_on_failure:
                raise
            return tuple(Translated(line.text, False, Reason.ENDPOINT) for line in lines), failure

    async def _translated(self, lines: Sequence[Line], order: TranslationConfig) -> list[Translated]:
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
        return target_languages.find(name) if name else None
    except (InvalidLanguage, UnsupportedLanguage):
        return None
