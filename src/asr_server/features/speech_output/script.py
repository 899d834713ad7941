"""A text to speak as the engine gets it: sentences in a voice and a language that the engine has."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asr_server.core.errors import InvalidInput, UnsupportedLanguage
from asr_server.engine.client import JobStream
from asr_server.features.speech_output.encoding.formats import EncodingOptions
from asr_server.features.speech_output.engines.protocol import Sentence, SpeechTraits, SpokenSentence, VoiceSample
from asr_server.features.speech_output.requests import DEFAULT_VOICE, SpeechOptions
from asr_server.features.speech_output.spoken_form import primary_language, spoken_form
from asr_server.schedule.job import DEFAULT, Job, Priority, SchedulerObserver
from asr_server.schedule.model import ModelState, ModelStatus
from asr_server.text import languages
from asr_server.text.scripts import UNSPACED, letter_names
from asr_server.text.sentences import SentenceStream, TextSpan

if TYPE_CHECKING:
    from asr_server.schedule.thread import Scheduler

_ANY_VOICE, _OF_KOKORO = "default", re.compile(r"[a-z][fm]_[a-z]+")
# Letters that eSpeak NG cannot read, or not by themselves.
_LANGUAGES = languages.OF_LETTERS | {
    **{"LAO": "lo", "KHMER": "km", "TIBETAN": "bo", "ORIYA": "or"},
    **{"IDEOGRAPHIC": "zh", "KATAKANA-HIRAGANA": "ja"},
}
# By the language code of a script: other languages also written in it, and languages whose script `letters_of` lacks.
_ALSO_WRITTEN = {"ru": ("bs", "uz"), "ar": ("az", "ku", "pa"), "hi": ("ks", "sd"), "bo": ("bo", "dz"), "or": ("or",)}
# Languages whose characters are syllables or words, and how many Latin letters one such character counts as.
_SYLLABIC = frozenset(["zh", "ja", "ko"])
_LETTERS_IN_SYLLABLE = 3


def language_of(text: str, default: str) -> str:
    """Return the language code of `text` by the script of most of its letters.

    Return `default`, a language tag, if that script is Latin, if there are no letters, or if the default language is
    written in that script.
    """
    counts = Counter[str]()
    for name, count in Counter(letter_names(text)).items():
        if code := _LANGUAGES.get(name):
            counts[code] += count * (_LETTERS_IN_SYLLABLE if code in _SYLLABIC else 1)
    if counts["ja"]:  # with kana in the text, its Chinese characters are Japanese too
        counts["ja"] += counts.pop("zh", 0)
    latin = counts.pop(_LANGUAGES["LATIN"], 0)
    code = max(counts, key=lambda code: counts[code], default="")
    if counts[code] <= latin:
        return default
    primary = primary_language(default)
    written = {_LANGUAGES.get(name) for name in languages.letters_of(primary)}
    return default if code in written or primary in _ALSO_WRITTEN.get(code, ()) else code


# Speaking rates of eSpeak NG at its usual speed. People read books aloud at about the same rates.
_LETTERS_PER_S, _SYLLABLES_PER_S = 14.0, 4.5


def spoken_s(text: str) -> float:
    """Return the estimated seconds to say the text. In scripts without spaces, a character is about a syllable."""
    syllables = len(UNSPACED.findall(text))
    return (len(text) - syllables) / _LETTERS_PER_S + syllables / _SYLLABLES_PER_S


# One sentence: its samples as float32 arrays (n,) at 24 kHz, then how it ended.
SpeechStream = JobStream[NDArray[np.float32], SpokenSentence]


@dataclass(frozen=True, slots=True, eq=False)
class SpeechEngineClient:
    """Submits sentences for one speech engine to its thread."""

    thread: Scheduler
    traits: SpeechTraits
    model_id: str  # the model that speaks
    model: str = DEFAULT  # its name on the thread
    observer: SchedulerObserver | None = None  # of its sentences

    def speak(self, sentence: Sentence, *, priority: Priority, duration_s: float, deadline_s: float) -> SpeechStream:
        """Queue the sentence at once and return its samples as they come. `duration_s`: its estimated length.

        Reading the stream raises `TimeoutError` at `deadline_s` by the thread's `request_clock`. Raises `ShuttingDown`
        when no new work is taken, and `EngineFailed`.
        """
        job = Job[SpokenSentence](sentence, priority, duration_s, deadline_s, self.model, observer=self.observer)
        return SpeechStream(self.thread, job)


@dataclass(frozen=True, slots=True)
class SpeechEngines:
    """The speech engines of the server."""

    named: tuple[SpeechEngineClient, ...]  # the engines with voices of their own, in order of preference
    clone: SpeechEngineClient | None = None  # the engine that imitates voices, None if there is none

    @property
    def status(self) -> ModelStatus:
        """The state of the first engine that is not unloaded; never waits."""
        found = [client.thread.snapshot().models[client.model] for client in self.named]
        return next((one for one in found if one.state is not ModelState.UNLOADED), found[0])

    def choose(self, voice: str | None, language: str) -> tuple[SpeechEngineClient, str, str]:
        """Return the engine for a voice (None: the voice of a recording), and its names for the voice and the language.

        Raises `invalid_value` for a voice that no engine has, `UnsupportedLanguage` for a language that the engines
        with the voice do not speak.
        """
        engines = self.named if voice is not None or self.clone is None else (self.clone,)
        found = [(one, name) for one in engines if (name := _voice(one.traits, voice)) is not None]
        if not found:
            names = (name for one in engines for name in (*one.traits.openai_voices, *_own(one.traits)))
            raise InvalidInput(f"There is no such voice. There are: {', '.join(dict.fromkeys(names))}.", param="voice")
        for client, name in found:
            for code in (language, language.partition("-")[0]):
                if code in client.traits.languages:
                    return client, name, code
        codes = ", ".join(sorted({code for one, _ in found for code in one.traits.languages}))
        raise UnsupportedLanguage(f"The voices do not speak this language. They speak: {codes}.", param="language")


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """The engine and the options with which the sentences of a request are spoken."""

    options: SpeechOptions
    sample: VoiceSample | None  # a voice to imitate instead of the voice in the options
    client: SpeechEngineClient
    voice: str  # the engine's name for it
    language: str  # the engine's name for it

    @property
    def encoding(self) -> EncodingOptions:
        """The options for encoding the audio of the sentences."""
        audio_format, speed, pause_ms = self.options.response_format, self.options.speed, self.options.pause_ms
        if self.client.traits.changes_speed:
            speed, pause_ms = 1.0, round(pause_ms / speed)
        return EncodingOptions(audio_format, speed=speed, pause_ms=pause_ms)

    @property
    def ignored(self) -> tuple[str, ...]:
        """Fields of the request that the engine does not use."""
        follows = self.client.traits.follows_instructions
        return ("instructions",) if self.options.instructions and not follows else ()

    def seconds(self, text: str) -> float:
        return spoken_s(text) / self.options.speed

    def row(self, text: str) -> Sentence:
        """Return a sentence as the engine gets it."""
        options = self.options
        spoken = spoken_form(text, self.language) if options.spell_out else text
        instructions = "" if self.ignored else options.instructions
        speed = options.speed if self.client.traits.changes_speed else 1.0
        return Sentence(spoken, self.voice, self.language, instructions, options.seed, self.sample, speed)


@dataclass(frozen=True, slots=True, eq=False)
class SpeechScript:
    """The sentences of a text, and the way to speak and encode them."""

    how: Delivery
    characters: int
    spans: Sequence[TextSpan]
    share: str = ""  # the caller that it counts for, a key or an address
    priority: Priority = Priority.INTERACTIVE
    timeout_s: float = 0.0  # 0: the server's limit


def _voice(traits: SpeechTraits, wanted: str | None) -> str | None:
    """Return the engine's name of the voice, "" for the voice of a recording, None if it has no such voice."""
    if wanted is None:
        return ""
    name = wanted.strip().lower()
    if name in _own(traits):
        return name
    # Kokoro's voices have a letter for the language and one for the sex before their names: af_heart.
    is_any = name == _ANY_VOICE or _OF_KOKORO.fullmatch(name)
    return traits.openai_voices.get(DEFAULT_VOICE if is_any else name)


def _own(traits: SpeechTraits) -> list[str]:
    return sorted(voice.id for voice in traits.voices)


class ArrivingText:
    """Finds the sentences of one text after another, each as soon as its end is certain.

    However a text is cut into pieces, it has the same sentences. `language_of` decides its language from its first
    sentence, which is found by the rules of `default`.
    """

    def __init__(self, default: str, language_of: Callable[[str], str]) -> None:
        self._default, self._language_of = default, language_of
        self.clear()

    @property
    def waiting_characters(self) -> int:
        """The number of characters that have arrived but whose sentence is not certain yet."""
        return self._sentences.waiting_characters if self._undecided is None else len(self._undecided)

    def clear(self) -> None:
        """Forget what has arrived: the next piece begins another text."""
        self._sentences = SentenceStream(self._default)
        self._undecided: str | None = ""  # the whole text, until its language is known

    def push(self, piece: str) -> list[str]:
        """Add a piece and return the sentences that are certain now.

        Raises what `language_of` raises; the text is forgotten then.
        """
        if self._undecided is None:
            return self._sentences.push(piece)
        self._undecided += piece
        return self._decided(self._undecided, self._sentences.push(piece))

    def end(self) -> list[str]:
        """End the text and return its last sentences. The next piece begins another text. Raises as `push`."""
        found = [] if self._undecided is None else self._decided(self._undecided, self._sentences.flush())
        if self._undecided is None:
            found += self._sentences.flush()
        self.clear()
        return found

    def _decided(self, text: str, provisional: list[str]) -> list[str]:
        """Return the sentences so far by the rules of the text's language, once its first sentence is known."""
        if not provisional:
            return []
        try:
            self._sentences = SentenceStream(self._language_of(provisional[0]))
        except BaseException:
            self.clear()
            raise
        self._undecided = None
        return self._sentences.push(text)
