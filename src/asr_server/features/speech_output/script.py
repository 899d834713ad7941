"""A request to speak as the engine gets it: sentences in a voice and a language that the engine has."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

from asr_server.core.errors import InvalidValue, SpeechUnavailable, TextTooLong, UnsupportedLanguage
from asr_server.core.settings import SpeechSettings
from asr_server.features.speech_output.encoding.formats import EncodingOptions
from asr_server.features.speech_output.engines.client import SpeechEngineClient
from asr_server.features.speech_output.engines.protocol import Sentence, SpeechTraits
from asr_server.features.speech_output.requests import DEFAULT_VOICE, SpeechRequest
from asr_server.features.speech_output.spoken_form import spoken_form
from asr_server.schedule.model import ModelState, ModelStatus
from asr_server.text import languages, scripts
from asr_server.text.scripts import is_unspaced
from asr_server.text.sentences import TextSpan, sentences

_ANY_VOICE, _OF_KOKORO = "default", re.compile(r"[a-z][fm]_[a-z]+")
# The blocks of a script and the languages that are written in it. The first is assumed where nothing else is known.
_SCRIPTS = [
    (scripts.HAN, ["zh", "ja", "yue", "wuu", "nan", "hak"]),
    (scripts.KANA, ["ja"]),
    ("\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff", ["ko"]),
    (scripts.THAI, ["th"]),
    ("\u0e80-\u0eff", ["lo"]),
    ("\u1000-\u109f", ["my"]),
    ("\u1780-\u17ff", ["km"]),
    ("\u0f00-\u0fff", ["bo", "dz"]),
    (
        "\u0400-\u052f\u1c80-\u1c8f\u2de0-\u2dff\ua640-\ua69f",
        ["ru", "uk", "be", "bg", "mk", "sr", "bs", "kk", "ky", "tg", "mn", "tt", "ba", "cv", "ce", "os", "uz"],
    ),
    ("\u0370-\u03ff\u1f00-\u1fff", ["el", "grc"]),
    ("\u0530-\u058f", ["hy"]),
    ("\u10a0-\u10ff\u1c90-\u1cbf", ["ka"]),
    ("\u0590-\u05ff\ufb1d-\ufb4f", ["he", "iw", "yi", "ji"]),
    (
        "\u0600-\u06ff\u0750-\u077f\u0870-\u08ff\ufb50-\ufdff\ufe70-\ufeff",
        ["ar", "fa", "ur", "ps", "ckb", "ug", "sd", "ku", "pa", "ks", "az"],
    ),
    ("\u0900-\u097f\ua8e0-\ua8ff", ["hi", "mr", "ne", "sa", "kok", "mai", "bho", "sd", "ks"]),
    ("\u0980-\u09ff", ["bn", "as"]),
    ("\u0a00-\u0a7f", ["pa"]),
    ("\u0a80-\u0aff", ["gu"]),
    ("\u0b00-\u0b7f", ["or"]),
    ("\u0b80-\u0bff", ["ta"]),
    ("\u0c00-\u0c7f", ["te"]),
    ("\u0c80-\u0cff", ["kn"]),
    ("\u0d00-\u0d7f", ["ml"]),
    ("\u0d80-\u0dff", ["si"]),
    ("\u1200-\u139f\u2d80-\u2ddf", ["am", "ti", "gez"]),
]
_PATTERNS = [(re.compile(f"[{blocks}]+"), languages) for blocks, languages in _SCRIPTS]
_LANGUAGES = {languages[0]: languages for _, languages in _SCRIPTS}
_LATIN = re.compile("[A-Za-z\u00aa-\u02af\u1e00-\u1eff]+")
# Scripts whose characters are syllables or words, and how many letters of Latin one of them counts as.
_SYLLABIC = frozenset(["zh", "ja", "ko"])
_LETTERS_IN_SYLLABLE = 3


def language_of(text: str, default: str) -> str:
    """Return the language code of `text` by the script of most of its letters.

    `default`, a language tag, where that script is Latin, where there are no letters, and where the default language
    is written in that script.
    """
    letters = {languages[0]: _letters(pattern, text) for pattern, languages in _PATTERNS}
    if letters["ja"]:  # kana: with them Chinese characters are Japanese too
        letters["ja"] += letters.pop("zh")
    counts = {code: n * (_LETTERS_IN_SYLLABLE if code in _SYLLABIC else 1) for code, n in letters.items()}
    code = max(counts, key=lambda code: counts[code])
    if counts[code] <= _letters(_LATIN, text):
        return default
    primary = re.split("[-_]", default.lower(), maxsplit=1)[0]
    return default if primary in _LANGUAGES[code] else code


def _letters(pattern: re.Pattern[str], text: str) -> int:
    return sum(map(str.isalpha, "".join(pattern.findall(text))))


# Of eSpeak NG at its usual rate; people read books at about the same.
_LETTERS_PER_S, _SYLLABLES_PER_S = 14.0, 4.5


def spoken_s(text: str) -> float:
    """Return about how many seconds the text takes. A character of a script without blanks is about a syllable."""
    syllables = sum(map(is_unspaced, text))
    return (len(text) - syllables) / _LETTERS_PER_S + syllables / _SYLLABLES_PER_S


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
    if name in _own(traits):
        return name
    # Kokoro's voices have a letter for the language and one for the sex before their names: af_heart.
    is_any = name == _ANY_VOICE or _OF_KOKORO.fullmatch(name)
    return traits.openai_voices.get(DEFAULT_VOICE if is_any else name)


def _own(traits: SpeechTraits) -> list[str]:
    return sorted(voice.id for voice in traits.voices)


def _language_tag(request: SpeechRequest, default: str) -> str:
    """Return the language of the request, or that of the text's script. Raises `InvalidLanguage`."""
    if request.language is None:
        return language_of(request.text, default).lower()
    return languages.find(request.language).tag.lower()
