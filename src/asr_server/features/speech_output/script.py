"""A request to speak as the engine gets it: sentences in a voice and a language that the engine has."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from asr_server.core.errors import InvalidValue, SpeechUnavailable, TextTooLong, UnsupportedLanguage
from asr_server.core.settings import SpeechSettings
from asr_server.features.speech_output.durations import spoken_s
from asr_server.features.speech_output.encoding.formats import EncodingOptions
from asr_server.features.speech_output.engines.client import SpeechEngineClient
from asr_server.features.speech_output.engines.protocol import Sentence, SpeechTraits
from asr_server.features.speech_output.requests import SpeechRequest
from asr_server.features.speech_output.spoken_form import spoken_form
from asr_server.features.speech_output.spoken_language import language_of
from asr_server.schedule.model import ModelState, ModelStatus
from asr_server.text import languages
from asr_server.text.sentences import TextSpan, sentences


@dataclass(frozen=True, slots=True)
class SpeechEngines:
    """The speech engines of the server."""

    named: tuple[SpeechEngineClient, ...]  # those with voices of their own, in the order in which they are preferred
    clone: SpeechEngineClient | None = None  # the engine that imitates voices, None if there is none

    @property
    def status(self) -> ModelStatus:
        """The state of the first engine that is not unloaded; never waits."""
        found = [client.status for client in self.named]
        return next((one for one in found if one.state is not ModelState.UNLOADED), found[0])

    def check(self, *, imitates: bool) -> None:
        """Raise `SpeechUnavailable` where a voice is to be imitated and nothing can."""
        if imitates and self.clone is None:
            raise SpeechUnavailable("This server imitates no voices: SPEECH_CLONE_MODEL is not set.")

    def choose(self, request: SpeechRequest, default_language: str) -> tuple[SpeechEngineClient, str, str]:
        """Return the engine for a request, and its names of the voice and of the language.

        Raises `SpeechUnavailable`, `InvalidValue` for a voice that no engine has, `UnsupportedLanguage` for a language
        that the engines with the voice do not speak, and `InvalidLanguage` for a name of no language.
        """
        self.check(imitates=request.sample is not None)
        engines = self.named if request.sample is None or self.clone is None else (self.clone,)
        found = [(one, voice) for one in engines if (voice := _voice(one.traits, request)) is not None]
        if not found:
            names = (name for one in engines for name in (*one.traits.openai_voices, *_own(one.traits)))
            raise InvalidValue(f"There is no such voice. There are: {', '.join(dict.fromkeys(names))}.", param="voice")
        wanted = _language_tag(request, default_language)
        for client, voice in found:
            for code in (wanted, wanted.partition("-")[0]):
                if code in client.traits.languages:
                    return client, voice, code
        codes = ", ".join(sorted({code for one, _ in found for code in one.traits.languages}))
        raise UnsupportedLanguage(f"The voices do not speak this language. They speak: {codes}.", param="language")


@dataclass(frozen=True, slots=True, eq=False)
class SpeechScript:
    """The sentences of a request, and the way to speak and encode them."""

    client: SpeechEngineClient
    characters: int
    spans: tuple[TextSpan, ...]  # the sentences as they are in the request's text
    rows: tuple[Sentence, ...]  # the sentences as the engine gets them
    encoding: EncodingOptions
    key: str  # a digest of everything that the answer depends on
    ignored: tuple[str, ...] = ()  # fields of the request that the engine does not use
    share: str = ""  # the caller that it counts for, a key or an address

    @property
    def duration_s(self) -> float:
        """About how long the speech will be."""
        return sum(spoken_s(row.text) / row.speed for row in self.rows) / self.encoding.speed


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """The engine and the options with which the sentences of a request are spoken."""

    request: SpeechRequest
    client: SpeechEngineClient
    voice: str  # the engine's name
    language: str  # the engine's name
    loudness_lufs: float | None = None  # None leaves the loudness as it is

    @property
    def encoding(self) -> EncodingOptions:
        """The options by which the audio of the sentences is encoded."""
        request, speed, pause_ms = self.request, self.request.speed, self.request.pause_ms
        if self.client.traits.changes_speed:
            speed, pause_ms = 1.0, round(pause_ms / speed)
        return EncodingOptions(request.format, speed=speed, pause_ms=pause_ms, loudness_lufs=self.loudness_lufs)

    @property
    def ignored(self) -> tuple[str, ...]:
        """Fields of the request that the engine does not use."""
        follows = self.client.traits.follows_instructions
        return ("instructions",) if self.request.instructions and not follows else ()

    def row(self, text: str) -> Sentence:
        """Return a sentence as the engine gets it."""
        request = self.request
        spoken = spoken_form(text, self.language) if request.spell_out else text
        instructions = "" if self.ignored else request.instructions
        speed = request.speed if self.client.traits.changes_speed else 1.0
        return Sentence(spoken, self.voice, self.language, instructions, request.seed, request.sample, speed)


def delivery(request: SpeechRequest, engines: SpeechEngines, settings: SpeechSettings) -> Delivery:
    """Return the delivery of a request. Raises for a wrong voice or language, and `SpeechUnavailable`."""
    return Delivery(request, *engines.choose(request, settings.speech_language), settings.speech_loudness_lufs)


def prepare(request: SpeechRequest, engines: SpeechEngines, settings: SpeechSettings) -> SpeechScript:
    """Return the script of a request. Raises for a wrong request, and `SpeechUnavailable`."""
    limit = settings.max_speech_chars
    if len(request.text) > limit:
        raise TextTooLong(f"The text has more than {limit} characters; longer ones are jobs.", param="input")
    return script_of(delivery(request, engines, settings), request.text)


def script_of(how: Delivery, text: str) -> SpeechScript:
    """Return the script of a text, which need not be that of the request. Raises `InvalidValue`."""
    spans = tuple(sentences(text, how.language))
    if not spans:
        raise InvalidValue("The text has nothing to speak: no letter and no digit.", param="input")
    rows = tuple(how.row(span.text) for span in spans)
    key = _key(how.client.model_id, rows, how.encoding)
    return SpeechScript(how.client, len(text), spans, rows, how.encoding, key, how.ignored)


def _key(model_id: str, rows: tuple[Sentence, ...], encoding: EncodingOptions) -> str:
    """Return a digest of everything that the answer depends on."""
    first = rows[0]
    sample = first.sample.key if first.sample is not None else ""
    voice = (first.voice, first.language, first.instructions, first.seed, sample, first.speed)
    parts = [model_id, [row.text for row in rows], voice, repr(encoding)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _voice(traits: SpeechTraits, request: SpeechRequest) -> str | None:
    """Return the engine's name of the voice, "" with a sample, None if it has no such voice."""
    if request.sample is not None:
        return ""
    name = request.voice.strip().lower()
    return name if name in _own(traits) else traits.openai_voices.get(name)


def _own(traits: SpeechTraits) -> list[str]:
    return sorted(voice.id for voice in traits.voices)


def _language_tag(request: SpeechRequest, default: str) -> str:
    """Return the language of the request, or that of the text's script. Raises `InvalidLanguage`."""
    if request.language is None:
        return language_of(request.text, default).lower()
    return languages.find(request.language).tag.lower()
