"""What the loaded model is called, by its own name and those that OpenAI's clients send, and the languages it knows."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from asr_server.core.errors import UnknownModel, UnsupportedLanguage
from asr_server.text.languages import model_languages

# Names that applications have built in. All mean the loaded model.
ALIASES = (
    "whisper-1",
    "gpt-transcribe",
    "gpt-4o-transcribe",
    "gpt-4o-mini-transcribe",
    "gpt-4o-mini-transcribe-2025-12-15",
    "gpt-live-transcribe",
    "gpt-realtime-whisper",
)


@dataclass(frozen=True, slots=True)
class Model:
    """One name. `created`: the start of the server, in Unix seconds."""

    id: str
    created: int
    owned_by: str


class Catalog:
    """What `/v1/models` lists, and what the `model` and `language` fields may say.

    `languages`: the model's names of those it knows.
    """

    def __init__(self, model_id: str, languages: Collection[str] = model_languages()) -> None:
        self._languages = languages
        created = int(time.time())
        owner = model_id.split("/")[0] if model_id.count("/") == 1 else "local"
        self._models = {model_id: Model(model_id, created, owner)}
        self._models |= {alias: Model(alias, created, "alias") for alias in ALIASES if alias != model_id}

    def all(self) -> list[Model]:
        """Every name; the loaded model's own is the first."""
        return list(self._models.values())

    def check_language(self, language: str | None, param: str = "language") -> None:
        """Raise `UnsupportedLanguage` if the model does not know `language`, which is one of its names or None."""
        if language is not None and language not in self._languages:
            known = ", ".join(sorted(self._languages))
            raise UnsupportedLanguage(f"The loaded model does not know {language}. It knows: {known}.", param=param)

    def find(self, name: str) -> Model:
        """The model of that name; raises `UnknownModel`."""
        model = self._models.get(name)
        if model is None:
            raise UnknownModel(
                "The model does not exist on this server; GET /v1/models lists those that do.", param="model"
            )
        return model
