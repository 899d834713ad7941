"""A checkpoint's tokenizer, chat template and prompts: the text half of the SDK's processor.

The SDK uses transformers, which imports torch if it is installed. Here the library `tokenizers` makes the ids. A test
compares both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Library

# How text is split before pairs of bytes are merged: the pattern of `Qwen2Tokenizer`, and the pattern that transformers
# uses instead for large vocabularies if `fix_mistral_regex` is set, as the SDK sets it.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CASED_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LARGE_VOCABULARY = 100_000
# Settings that name one special token each.
_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")

# The tag between the language and the text of an answer.
ASR_TEXT = "<asr_text>"
# Prompts that are cached. The longest that a request may have takes 0.6 MB.
_KEPT_PROMPTS = 64


class TextTokenizer:
    """Text to ids and back."""

    def __init__(self, library: Library) -> None:
        self.library = library
        added = library.get_added_tokens_decoder().values()
        # The names of tokens that are not text, and whether decoding omits them.
        self.added: dict[str, bool] = {token.content: token.special for token in added}

    @classmethod
    def load(cls, directory: Path) -> TextTokenizer:
        """Read the tokenizer of a checkpoint. Raises any error that its files cause."""
        settings = _read(directory / "tokenizer_config.json")
        whole = directory / "tokenizer.json"
        library = Library.from_file(str(whole)) if whole.is_file() else _of_vocabulary(directory)
        if library.get_vocab_size(with_added_tokens=False) > _LARGE_VOCABULARY and _has_cased_words(directory):
            parts = cast(Any, library.pre_tokenizer)  # a sequence, whose items can be replaced
            parts[0] = pre_tokenizers.Split(Regex(_CASED_WORDS), "isolated")
        special = _special(settings)
        for token in _added(settings):
            token.special = token.special or token.content in special
            library.add_tokens([token])
        return cls(library)

    def ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.library.encode(text).ids)

    def text(self, ids: Sequence[int]) -> str:
        return self.library.decode(list(ids), skip_special_tokens=True)

    def token(self, number: int) -> str | None:
        """Return the name of an id, or None if the id is after the end of the vocabulary."""
        return self.library.id_to_token(number)

    def number(self, token: str) -> int | None:
        return self.library.token_to_id(token)


class ChatTemplate:
    """The template of a checkpoint's prompts."""

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
        environment.globals["raise_exception"] = _refuse
        self._template = environment.from_string(source)

    @classmethod
    def load(cls, directory: Path) -> ChatTemplate:
        """Read the template of a checkpoint. Raises `ValueError` if there is none."""
        plain = directory / "chat_template.jinja"
        if plain.is_file():
            return cls(plain.read_text(encoding="utf-8"))
        for name in ("chat_template.json", "processor_config.json", "tokenizer_config.json"):
            source = _read(directory / name).get("chat_template")
            if isinstance(source, str):
                return cls(source)
        raise ValueError("The checkpoint has no chat template.")

    def render(self, messages: Sequence[dict[str, Any]]) -> str:
        return self._template.render(messages=messages, add_generation_prompt=True, tools=None, documents=None)


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """The token ids of a prompt around the audio."""

    before: tuple[int, ...]  # before the audio
    after: tuple[int, ...]  # after it


class PromptBuilder:
    """Renders the checkpoint's chat template. Caches the last prompts: all partials of a session have the same one."""

    def __init__(self, tokenizer: TextTokenizer, template: ChatTemplate, audio_id: int) -> None:
        """`audio_id`: the token that stands for audio in a prompt."""
        self.build = lru_cache(_KEPT_PROMPTS)(self._build)
        self._tokenizer, self._template = tokenizer, template
        self._audio = tokenizer.token(audio_id)
        self._control = control_tokens(tokenizer.added)

    def _build(self, *, context: str, language: str | None) -> Prompt:
        """Return the prompt for one clip. `context` goes into the system turn; `language` (the model's name) forces
        that language."""
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": clean(self._control, context)},
            {"role": "user", "content": [{"type": "audio", "audio": ""}]},
        ]
        text = self._template.render(messages)
        if language is not None:
            text += f"language {language}{ASR_TEXT}"
        before, after = text.split(self._audio)
        return Prompt(self._tokenizer.ids(before), self._tokenizer.ids(after))

    def answer(self, text: str, language: str, *, forced: bool) -> tuple[int, ...]:
        """Return the ids of an answer with `text` in `language`. The answer names its language unless that was
        `forced`. Returns () if it would have to name an unknown language."""
        text = clean(self._control, text)
        if forced:
            return self._tokenizer.ids(text)
        named = f"language {language}{ASR_TEXT}{text}" if text else "language None"
        return self._tokenizer.ids(named) if language or not text else ()

    def beginnings(self, languages: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        return tuple(self._tokenizer.ids(f"language {language}{ASR_TEXT}") for language in languages)


def control_tokens(added: Iterable[str]) -> list[str]:
    """Return the names of tokens that are not text, longest first: removing one never leaves part of another."""
    return sorted(added, key=len, reverse=True)


def clean(control: Sequence[str], text: str) -> str:
    """Return `text` without control tokens, which would end the turn or stand for audio that is not there."""
    while any(token in text for token in control):
        for token in control:
            text = text.replace(token, " ")
    return text.strip()


def _of_vocabulary(directory: Path) -> Library:
    """Build a tokenizer from the vocabulary and its merges, as `Qwen2TokenizerFast` does."""
    vocabulary = json.loads((directory / "vocab.json").read_text(encoding="utf-8"))
    lines = (directory / "merges.txt").read_text(encoding="utf-8").split("\n")
    # The first line may state a version. Lines that do not hold a pair are skipped.
    pairs = (tuple(line.split()) for line in lines if line and not line.startswith("#version"))
    merges = cast(list[tuple[str, str]], [pair for pair in pairs if len(pair) == 2])
    library = Library(models.BPE(vocab=vocabulary, merges=merges, continuing_subword_prefix="", end_of_word_suffix=""))
    library.normalizer = normalizers.NFC()
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    library.decoder = decoders.ByteLevel()
    library.post_processor = processors.ByteLevel(trim_offsets=False)
    return library


def _has_cased_words(directory: Path) -> bool:
    """True if transformers 4.57.6 replaces the pattern that splits text: unless it knows that the checkpoint is older
    or newer than the fault that the replacement corrects."""
    config = _read(directory / "config.json")
    version, kind = config.get("transformers_version"), config.get("model_type")
    if not version:
        return True
    number = tuple(int(part) for part in str(version).split(".")[:3] if part.isdecimal())
    return number < (5, 0, 0) and (number > (4, 57, 2) or kind is None)


def _special(settings: dict[str, Any]) -> set[str]:
    """Return the names of all special tokens."""
    more = settings.get("additional_special_tokens") or []
    named = settings.get("extra_special_tokens") or {}
    own = settings.get("model_specific_special_tokens") or {}
    found = [*(settings.get(name) for name in _NAMED), *more, *_names(named), *_names(own)]
    return {name for one in found if (name := one.get("content") if isinstance(one, dict) else one)}


def _names(named: Any) -> Iterable[Any]:
    return named.values() if isinstance(named, dict) else named


def _added(settings: dict[str, Any]) -> list[AddedToken]:
    """Return the tokens after the vocabulary, in the order of their ids."""
    listed = settings.get("added_tokens_decoder") or {}
    return [
        AddedToken(**{name: value for name, value in token.items() if name != "__type"})
        for _, token in sorted(listed.items(), key=lambda pair: int(pair[0]))
    ]


def _read(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found if isinstance(found, dict) else {}


def _refuse(message: str) -> None:
    raise ValueError(message)
