"""A transcript or cues into another language, with the same times. Times are taken from the source: none are sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from loguru import logger

from asr_server.core.errors import InvalidLanguage, TranslationError, TranslationUnavailable, UnsupportedLanguage
from asr_server.core.transcript import Transcript
from asr_server.subtitle.cue_config import CueConfig
from asr_server.subtitle.cues import Cue
from asr_server.subtitle.layout import relayout
from asr_server.text import joining, target_languages
from asr_server.text.target_languages import LanguageTag
from asr_server.translator.endpoint import ChatEndpoint, EndpointConfig, PromptOutcome
from asr_server.translator.lines import Line, Reason, Translated, TranslationConfig
from asr_server.translator.translator import Translator

if TYPE_CHECKING:
    from asr_server.core.settings import Settings

_NOT_SET_UP = "No translation endpoint is set up: set {names} to an OpenAI-compatible endpoint and a model it serves."


@dataclass(frozen=True, slots=True)
class TranslateOptions:
    """What a caller wants. `source`: the language of all the text, or None to go by what was recognised. `glossary`:
    terms and how they must be translated. `keep_on_failure`: a failure comes with the source text instead of being
    raised. `limit_s`: the time it may take; the server's limit for one request if not given.
    """

    target: LanguageTag
    source: LanguageTag | None = None
    glossary: Mapping[str, str] = field(default_factory=dict)
    keep_on_failure: bool = False
    limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class TranslatedCues:
    """`lines[i]` is the outcome of `source[i]`. `failure`: what kept every line in the source language, if something
    did and the caller asked to be told so."""

    source: tuple[Cue, ...]
    lines: tuple[Translated, ...]
    target: LanguageTag
    failure: TranslationError | None = None

    @property
    def kept(self) -> int:
        """How many lines stayed in the source language although they should not have."""
        return sum(line.kept for line in self.lines)

    def laid_out(self, rules: CueConfig, *, bilingual: bool = False) -> list[Cue]:
        """As many cues, in the same order, with the times of the source; the translation in balanced lines, in place of
        the source or below it. A line without a translation stands once, as it was."""
        cues = list(self.source)
        for i, line in enumerate(self.lines):
            if line.translated:
                text = relayout(line.text, rules)
                cues[i] = replace(cues[i], translation=text) if bilingual else replace(cues[i], text=text)
        return cues


@dataclass(frozen=True, slots=True)
class TranslatedTranscript:
    """`lines[i]` is the outcome of `source.segments[i]`; `failure` as above."""

    source: Transcript
    lines: tuple[Translated, ...]
    target: LanguageTag
    failure: TranslationError | None = None

    @property
    def kept(self) -> int:
        """How many segments stayed in the source language although they should not have."""
        return sum(line.kept for line in self.lines)

    @property
    def transcript(self) -> Transcript:
        """The transcript in the target language: the times and scores of the source; no words and tokens, which wrote
        another text. Where nothing is translated, it is the source as it was."""
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
    """The use case, for the whole process: one endpoint, and the bound on questions to it, shared by all requests."""

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
        """Raise `TranslationUnavailable` where no endpoint is set up: asked before a body is read."""
        if self._missing:
            raise TranslationUnavailable(_NOT_SET_UP.format(names=" and ".join(self._missing)))

    async def cues(
        self, cues: Sequence[Cue], options: TranslateOptions, *, languages: Sequence[str] = ()
    ) -> TranslatedCues:
        """The cues in the target language. `languages`: the recognised one of each cue, by name or code, "" where it is
        unknown; or nothing, when none is known.

        Raises `TranslationUnavailable` and `TranslationFailed` (unless `keep_on_failure`) when nothing at all could be
        translated; single lines that could not be are kept and say why. Cancelling hangs up on the endpoint.
        """
        known = languages or [""] * len(cues)
        lines = [
            Line(joining.unbroken(cue.text), options.source or _tongue(name))
            for cue, name in zip(cues, known, strict=True)
        ]
        found, failure = await self._translate(lines, options, self._settings.translate_srt_temperature)
        return TranslatedCues(tuple(cues), found, options.target, failure)

    async def transcript(self, transcript: Transcript, options: TranslateOptions) -> TranslatedTranscript:
        """The transcript's segments in the target language; raises the same."""
        lines = [
            Line(s.text, options.source or _tongue(s.language or transcript.language)) for s in transcript.segments
        ]
        found, failure = await self._translate(lines, options, self._settings.translate_temperature)
        return TranslatedTranscript(transcript, found, options.target, failure)

    @property
    def questions(self) -> Mapping[PromptOutcome, int]:
        """What became of all questions to the endpoint so far."""
        return self._endpoint.outcomes

    async def close(self) -> None:
        """Close the connections."""
        await self._endpoint.close()

    async def _translate(
        self, lines: Sequence[Line], options: TranslateOptions, temperature: float
    ) -> tuple[tuple[Translated, ...], TranslationError | None]:
        limit_s = self._settings.request_timeout if options.limit_s is None else options.limit_s
        order = TranslationConfig(options.target, temperature, limit_s, options.glossary)
        try:
            self.check()
            found = tuple(await self._translator.translate(lines, order))
        except TranslationError as failure:
            if not options.keep_on_failure:
                raise
            return tuple(Translated(line.text, False, Reason.ENDPOINT) for line in lines), failure
        kept = sum(line.kept for line in found)
        if kept:
            logger.warning("lines not translated", kept=kept, lines=len(found))
        return found, None


def _config(settings: Settings) -> EndpointConfig:
    key = settings.openai_api_key
    return EndpointConfig(
        base_url=str(settings.openai_base_url or ""),
        model=settings.translate_model,
        api_key=key.get_secret_value().strip() if key else "",
        timeout_s=settings.translate_timeout,
        concurrency=settings.translate_concurrency,
    )


def _tongue(language: str) -> LanguageTag | None:
    """The language that was recognised; None for one that nobody knows, which is then left to the endpoint."""
    try:
        return target_languages.find(language) if language else None
    except (InvalidLanguage, UnsupportedLanguage):
        return None
