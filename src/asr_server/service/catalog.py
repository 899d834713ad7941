"""What the loaded model is called, by its own name and those that clients send, and the languages it knows."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase

from asr_server.core.errors import UnknownModel, UnsupportedLanguage
from asr_server.text.languages import model_languages

# Names that applications have built in. All mean the loaded model. `*` stands for any characters.
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
    "Systran/faster-whisper-*",
    "Qwen/Qwen3-ASR-*",
)
_MAX_NAME_CHARS = 200


@dataclass(frozen=True, slots=True)
class Model:
    """One name. `created`: the start of the server, in Unix seconds."""

    id: str
    created: int
    owned_by: str


class Catalog:
    """What `/v1/models` lists, and what the `model` and `language` fields may say.

    `languages`: the model's names of those it knows. `aliases`: more names of the model, `*` for any characters.
    """

    def __init__(
        self, model_id: str, languages: Collection[str] = model_languages(), aliases: Collection[str] = ()
    ) -> None:
        self._languages = languages
        self._created = int(time.time())
        owner = model_id.split("/")[0] if model_id.count("/") == 1 else "local"
        names = [*ALIASES, *aliases]
        self._patterns = [name for name in names if "*" in name]
        self._models = {model_id: Model(model_id, self._created, owner)}
        self._models |= {name: self._alias(name) for name in names if "*" not in name and name != model_id}

    @property
    def default(self) -> str:
        """The model's own name."""
        return next(iter(self._models))

    def all(self) -> list[Model]:
        """Every name without `*`; the loaded model's own is the first."""
        return list(self._models.values())

    def check_language(self, language: str | None, param: str = "language") -> None:
        """Raise `UnsupportedLanguage` if the model does not know `language`, which is one of its names or None."""
        if language is not None and language not in self._languages:
            known = ", ".join(sorted(self._languages))
            raise UnsupportedLanguage(f"The loaded model does not know {language}. It knows: {known}.", param=param)

    def find(self, name: str, param: str = "model") -> Model:
        """The model of that name; raises `UnknownModel`, which names those that there are."""
        if (model := self._models.get(name)) is not None:
            return model
        if len(name) <= _MAX_NAME_CHARS and any(fnmatchcase(name, pattern) for pattern in self._patterns):
            return self._alias(name)
        names = ", ".join([*self._models, *self._patterns])
        raise UnknownModel(f"The model does not exist on this server, whose model has the names {names}.", param=param)

    def _alias(self, name: str) -> Model:
        return Model(name, self._created, "alias")
