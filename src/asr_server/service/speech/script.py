"""A request to speak as the engine gets it: sentences in a voice and a language that the engine has."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from asr_server.audio.encoding.formats import EncodingOptions
from asr_server.core.errors import InvalidValue, SpeechUnavailable, TextTooLong, UnsupportedLanguage
from asr_server.core.speech_settings import SpeechSettings
from asr_server.engine.speech.client import SpeechClient
from asr_server.engine.speech.protocol import Sentence, SpeechTraits
from asr_server.service.speech.durations import spoken_s
from asr_server.service.speech.requests import SpeechRequest
from asr_server.text import target_languages
from asr_server.text.sentences import TextSpan, sentences
from asr_server.text.spoken_form import spoken_form
from asr_server.text.spoken_language import language_of


@dataclass(frozen=True, slots=True)
class SpeechEngines:
    """What speaks. `clone`: what imitates voices, None where nothing does."""

    named: SpeechClient
    clone: SpeechClient | None = None

    def check(self, *, imitates: bool) -> None:
        """Raise `SpeechUnavailable` where a voice is to be imitated and nothing can."""
        if imitates and self.clone is None:
            raise SpeechUnavailable("This server imitates no voices: SPEECH_CLONE_MODEL is not set.")

    def of(self, request: SpeechRequest) -> SpeechClient:
        """That which can answer the request. Raises `SpeechUnavailable`."""
        self.check(imitates=request.sample is not None)
        return self.clone if self.clone is not None and request.sample is not None else self.named


@dataclass(frozen=True, slots=True, eq=False)
class SpeechScript:
    """What is to be spoken, and how.

    `spans`: the sentences as they are in the request's text, `rows`: the same as the engine gets them. `key`: of
    everything that the answer depends on. `ignored`: fields of the request that the engine has no use for.
    """

    client: SpeechClient
    characters: int
    spans: tuple[TextSpan, ...]
    rows: tuple[Sentence, ...]
    encoding: EncodingOptions
    key: str
    ignored: tuple[str, ...] = ()

    @property
    def duration_s(self) -> float:
        """About how long it will be."""
        return sum(spoken_s(row.text) for row in self.rows) / self.encoding.speed


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """How the sentences of a request are spoken. `voice`, `language`: the engine's names. `loudness_lufs`: None leaves
    it as it is."""

    request: SpeechRequest
    client: SpeechClient
    voice: str
    language: str
    loudness_lufs: float | None = None

    @property
    def encoding(self) -> EncodingOptions:
        """What becomes of their audio."""
        request = self.request
        return EncodingOptions(
            request.format, speed=request.speed, pause_ms=request.pause_ms, loudness_lufs=self.loudness_lufs
        )

    @property
    def ignored(self) -> tuple[str, ...]:
        """Fields of the request that the engine has no use for."""
        follows = self.client.traits.follows_instructions
        return ("instructions",) if self.request.instructions and not follows else ()

    def row(self, text: str) -> Sentence:
        """A sentence as the engine gets it."""
        request = self.request
        spoken = spoken_form(text, self.language) if request.spell_out else text
        instructions = "" if self.ignored else request.instructions
        return Sentence(spoken, self.voice, self.language, instructions, request.seed, request.sample)


def delivery(request: SpeechRequest, engines: SpeechEngines, settings: SpeechSettings) -> Delivery:
    """Raises what is wrong with the voice or the language, and `SpeechUnavailable`."""
    client = engines.of(request)
    language = _language(client.traits, request, settings.speech_language)
    return Delivery(request, client, _voice(client.traits, request), language, settings.speech_loudness_lufs)


def prepare(request: SpeechRequest, engines: SpeechEngines, settings: SpeechSettings) -> SpeechScript:
    """Raises what is wrong with the request, and `SpeechUnavailable`."""
    limit = settings.max_speech_chars
    if len(request.text) > limit:
        raise TextTooLong(f"The text has more than {limit} characters; longer ones are jobs.", param="input")
    return script_of(delivery(request, engines, settings), request.text)


def script_of(how: Delivery, text: str) -> SpeechScript:
    """A text, which need not be that of the request. Raises `InvalidValue`."""
    spans = tuple(sentences(text, how.language))
    if not spans:
        raise InvalidValue("The text has nothing to speak: no letter and no digit.", param="input")
    rows = tuple(how.row(span.text) for span in spans)
    key = _key(how.client.model_id, rows, how.encoding)
    return SpeechScript(how.client, len(text), spans, rows, how.encoding, key, how.ignored)


def _key(model_id: str, rows: tuple[Sentence, ...], encoding: EncodingOptions) -> str:
    """A digest of what the answer depends on."""
    first = rows[0]
    sample = first.sample.key if first.sample is not None else ""
    voice = (first.voice, first.language, first.instructions, first.seed, sample)
    parts = [model_id, [row.text for row in rows], voice, repr(encoding)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _voice(traits: SpeechTraits, request: SpeechRequest) -> str:
    """The engine's name of the voice, "" with a sample. Raises `InvalidValue`."""
    if request.sample is not None:
        return ""
    known = {one.id for one in traits.voices}
    name = request.voice.strip().lower()
    found = name if name in known else traits.openai_voices.get(name)
    if found is None:
        names = ", ".join([*sorted(traits.openai_voices), *sorted(known)])
        raise InvalidValue(f"There is no such voice. There are: {names}.", param="voice")
    return found


def _language(traits: SpeechTraits, request: SpeechRequest, default: str) -> str:
    """The engine's code of the language: that of the request, or that of the text's script.

    Raises `UnsupportedLanguage`, and `InvalidLanguage` for what is no language.
    """
    if request.language is None:
        wanted = language_of(request.text, default)
    else:
        wanted = target_languages.find(request.language).tag
    for code in (wanted.lower(), wanted.partition("-")[0].lower()):
        if code in traits.languages:
            return code
    names = ", ".join(traits.languages)
    raise UnsupportedLanguage(f"The voices do not speak this language. They speak: {names}.", param="language")
