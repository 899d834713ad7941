"""The models' own names, the names that clients send for them, and the languages they know.

Models for recordings and models that speak have separate names: a request names a model of its kind.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from asr_server.core.errors import InvalidInput, UnsupportedLanguage
from asr_server.text import languages
from asr_server.text.languages import model_languages

if TYPE_CHECKING:
    from asr_server.engine.feature import Plan

# Names that applications have built in. All mean the default model. `*` stands for any characters.
ALIASES = (
    "whisper-1",
    "gpt-transcribe",
    "gpt-4o-transcribe",
    "gpt-4o-mini-transcribe",
    "gpt-4o-mini-transcribe-2025-12-15",
    "gpt-live-transcribe",
    "gpt-realtime-whisper",
    "whisper-large-v3",
    "whisper-large-v3-turbo",
    "gpt-4o-*transcribe*",
    "openai/whisper-*",
    "distil-whisper*",
    "*faster-*whisper*",
    "Qwen/Qwen3-ASR-*",
)
# The sizes of Whisper, by which programs that ran it locally name it. They are not listed.
_WHISPER_SIZES = frozenset(
    f"{size}{variant}"
    for size, variants in {
        **dict.fromkeys(("tiny", "base", "small", "medium"), ("", ".en")),
        "large": ("", "-v1", "-v2", "-v3", "-v3-turbo"),
        "turbo": ("",),
    }.items()
    for variant in variants
)
# The same for speech: all mean the model that speaks on this server.
SPEECH_ALIASES = (
    "tts-1",
    "tts-1-hd",
    "gpt-4o-mini-tts",
    "espeak",
    "qwen-tts",
    "tts-1*",
    "gpt-4o-mini-tts*",
    "kokoro*",
    "hexgrad/Kokoro-*",
    "Qwen/Qwen3-TTS-*",
)
_MAX_NAME_CHARS = 200


class Task(StrEnum):
    """The task of a model, as Hugging Face's hub and other servers write it."""

    TRANSCRIPTION = "automatic-speech-recognition"
    SPEECH = "text-to-speech"


@dataclass(frozen=True, slots=True)
class Model:
    """One name of a model."""

    id: str
    created: int  # the start of the server, in Unix seconds
    owned_by: str
    resident: str = ""  # the model that it means, "" for the default
    task: Task = Task.TRANSCRIPTION


class Catalog:
    """The models that `/v1/models` lists, and the values of the fields `model` and `language`.

    `known`: the default model's names of the languages that it knows. `aliases`: more names of that model, `*` for any
    characters. `others`: further models with the languages that they know. `speech`: the names of the models that
    speak, if there are any.
    """

    def __init__(
        self,
        model_id: str,
        known: Collection[str] = model_languages(),
        aliases: Collection[str] = (),
        others: Mapping[str, Collection[str]] | None = None,
        speech: Collection[str] = (),
    ) -> None:
        others = others or {}
        self._languages = {"": known, **others}
        self._created = int(time.time())
        names = [*ALIASES, *aliases]
        self._patterns = [name for name in names if "*" in name]
        self._models = {model_id: Model(model_id, self._created, _owner(model_id))}
        self._models |= {name: Model(name, self._created, _owner(name), name) for name in others}
        self._models |= {name: self._alias(name) for name in names if "*" not in name and name not in self._models}
        self._speech = {name: Model(name, self._created, _owner(name), task=Task.SPEECH) for name in speech}
        self._speech |= {
            name: Model(name, self._created, "alias", task=Task.SPEECH)
            for name in SPEECH_ALIASES
            if speech and "*" not in name and name not in self._speech
        }

    @classmethod
    def of(cls, plan: Plan, aliases: Collection[str]) -> Catalog:
        """Return the catalog of the models of a plan."""
        others = {other.model_id: other.traits.languages for other in plan.others}
        speech = [plan.value(option) for option in ("speech", "speech_clone_model") if plan.is_active(option)]
        return cls(plan.model_id, plan.traits.languages, aliases, others, speech)

    @property
    def default(self) -> str:
        return next(iter(self._models))

    def all(self) -> list[Model]:
        """Return every name without `*`: the default model's own, the other models' own, the aliases, and
        last the names for speech."""
        speech = [model for name, model in self._speech.items() if name not in self._models]
        return [*self._models.values(), *speech]

    def check_language(self, language: str | None, param: str = "language", model: str = "") -> None:
        """Raise `UnsupportedLanguage` if a resident model does not know `language`, one of the model's names or
        None."""
        if language is not None and language not in self._languages[model]:
            raise self.unknown_language(language, param, model)

    def language(self, value: str | None, model: str = "") -> str | None:
        """Return the model's name of a client's language, or None if the model detects the language.

        Raises `invalid_language_format`, and `UnsupportedLanguage` if the resident model does not know it.
        """
        try:
            name = languages.normalize(value)
        except UnsupportedLanguage:
            raise self.unknown_language(model=model) from None
        self.check_language(name, model=model)
        return name

    def unknown_language(
        self, language: str = "this language", param: str = "language", model: str = ""
    ) -> UnsupportedLanguage:
        """Return the error that names the languages which the resident model knows."""
        names = ", ".join(sorted(self._languages[model]))
        return UnsupportedLanguage(f"The loaded model does not know {language}. It knows: {names}.", param=param)

    def find(self, name: str, param: str = "model", *, any_name: bool = False) -> Model:
        """Return the model for recordings of that name. With `any_name`, an unknown name means the default model;
        otherwise raises `model_not_found`, which lists the names."""
        if (model := self._models.get(name)) is not None:
            return model
        if any_name or name in _WHISPER_SIZES or _fits(name, self._patterns):
            return self._alias(name)
        names = ", ".join([*self._models, *self._patterns])
        message = (
            f"The model does not exist on this server, whose model has the names {names}. With MODEL_ALIASES=* it has "
            "every name."
        )
        if name in self._speech or _fits(name, SPEECH_ALIASES):
            message = (
                f"This model speaks: it is for POST /v1/audio/speech. The model for recordings has the names {names}."
            )
        raise InvalidInput(message, code="model_not_found", param=param)

    def find_speech(self, name: str, param: str = "model") -> Model:
        """Return the model of that name that speaks. Raises `model_not_found`, which lists the names."""
        if (model := self._speech.get(name)) is not None:
            return model
        if self._speech and _fits(name, SPEECH_ALIASES):
            return Model(name, self._created, "alias", task=Task.SPEECH)
        names = ", ".join([*self._speech, *SPEECH_ALIASES])
        message = f"The model does not exist on this server, whose model that speaks has the names {names}."
        if name in self._models or _fits(name, self._patterns):
            message = (
                "This model is for recordings: POST /v1/audio/transcriptions. The model that speaks has the names "
                f"{names}."
            )
        raise InvalidInput(message, code="model_not_found", param=param)

    def retrieve(self, name: str) -> Model:
        """Return the model of that name, for recordings or for speech. Raises `model_not_found`."""
        speaks = name in self._speech or (bool(self._speech) and _fits(name, SPEECH_ALIASES))
        return self.find_speech(name) if speaks and name not in self._models else self.find(name)

    def _alias(self, name: str) -> Model:
        return Model(name, self._created, "alias")


def _owner(model_id: str) -> str:
    return model_id.split("/")[0] if model_id.count("/") == 1 else "local"


def _fits(name: str, patterns: Collection[str]) -> bool:
    return len(name) <= _MAX_NAME_CHARS and any(fnmatchcase(name, pattern) for pattern in patterns)
