"""The chat prompt around the audio, from the checkpoint's own template."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from asr_server.engine.qwen_asr.tokenizer import ChatTemplate, TextTokenizer

ASR_TEXT = "<asr_text>"
# Prompts that are kept; the longest that a request may have takes 0.6 MB.
_KEPT = 64


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """The token ids of a prompt around the audio."""

    before: tuple[int, ...]  # before the audio
    after: tuple[int, ...]  # after it


class PromptBuilder:
    """Renders the checkpoint's chat template. Keeps the last prompts: the partials of a session have the same."""

    def __init__(self, tokenizer: TextTokenizer, template: ChatTemplate, audio_id: int) -> None:
        """`audio_id`: the token that stands for audio in a prompt."""
        self.build = lru_cache(_KEPT)(self._build)
        self._tokenizer, self._template = tokenizer, template
        self._audio = tokenizer.token(audio_id)
        self._control = control_tokens(tokenizer.added)

    def _build(self, *, context: str, language: str | None) -> Prompt:
        """Return the prompt for one clip. `context` goes into the system turn; `language` (the model's name) forces
        it."""
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
        """Return the ids of the answer that says `text` in `language`, after a forced language or none; () where the
        language would have to be named and is not known."""
        text = clean(self._control, text)
        if forced:
            return self._tokenizer.ids(text)
        named = f"language {language}{ASR_TEXT}{text}" if text else "language None"
        return self._tokenizer.ids(named) if language or not text else ()

    def beginnings(self, languages: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        return tuple(self._tokenizer.ids(f"language {language}{ASR_TEXT}") for language in languages)


def control_tokens(added: Iterable[str]) -> list[str]:
    """Return the names of tokens that are no text, longest first, so that none is left over from a piece of another."""
    return sorted(added, key=len, reverse=True)


def clean(control: Sequence[str], text: str) -> str:
    """`text` without control tokens: they would end the turn or stand for audio that is not there."""
    while any(token in text for token in control):
        for token in control:
            text = text.replace(token, " ")
    return text.strip()
