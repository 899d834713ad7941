"""What the models are called, by their own names and those that clients send, and the languages they know."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from asr_server.core.errors import UnknownModel, UnsupportedLanguage
from asr_server.text.languages import model_languages

if TYPE_CHECKING:
    from asr_server.engine.plan import Plan

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
    "Systran/faster-whisper-*",
    "Qwen/Qwen3-ASR-*",
)
_MAX_NAME_CHARS = 200


@dataclass(frozen=True, slots=True)
class Model:
    """One name. `created`: the start of the server, in Unix seconds. `resident`: the model that it means, "" for the
    default."""

    id: str
    created: int
    owned_by: str
    resident: str = ""


class Catalog:
    """What `/v1/models` lists, and what the `model` and `language` fields may say.

    `languages`: the default model's names of those it knows. `aliases`: more names of that model, `*` for any
    characters. `others`: further models with the languages that they know.
    """

    def __init__(
        self,
        model_id: str,
        languages: Collection[str] = model_languages(),
        aliases: Collection[str] = (),
        others: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        others = others or {}
        self._languages = {"": languages, **others}
        self._created = int(time.time())
        names = [*ALIASES, *aliases]
        self._patterns = [name for name in names if "*" in name]
        self._models = {model_id: Model(model_id, self._created, _owner(model_id))}
        self._models |= {name: Model(name, self._created, _owner(name), name) for name in others}
        self._models |= {name: self._alias(name) for name in names if "*" not in name and name not in self._models}

    @classmethod
    def of(cls, plan: Plan, aliases: Collection[str]) -> Catalog:
        """The catalog of the models of a plan."""
        others = {other.model_id: other.traits.languages for other in plan.others}
        return cls(plan.model_id, plan.traits.languages, aliases, others)

    @property
    def default(self) -> str:
        """The default model's own name."""
        return next(iter(self._models))

    def all(self) -> list[Model]:
        """Every name without `*`; the models' own come first, and the default model's before the others."""
        return list(self._models.values())

    def check_language(self, language: str | None, param: str = "language", model: str = "") -> None:
        """Raise `UnsupportedLanguage` if a resident model does not know `language`, which is one of its names or
        None."""
        known = self._languages[model]
        if language is not None and language not in known:
            names = ", ".join(sorted(known))
            raise UnsupportedLanguage(f"The loaded model does not know {language}. It knows: {names}.", param=param)

    def find(self, name: str, param: str = "model", *, any_name: bool = False) -> Model:
        """The model of that name; raises `UnknownModel`, which names those that there are, unless `any_name` means the
        default model."""
        if (model := self._models.get(name)) is not None:
            return model
        if any_name or (len(name) <= _MAX_NAME_CHARS and any(fnmatchcase(name, each) for each in self._patterns)):
            return self._alias(name)
        names = ", ".join([*self._models, *self._patterns])
        raise UnknownModel(f"The model does not exist on this server, whose model has the names {names}.", param=param)

    def _alias(self, name: str) -> Model:
        return Model(name, self._created, "alias")


def _owner(model_id: str) -> str:
    return model_id.split("/")[0] if model_id.count("/") == 1 else "local"
