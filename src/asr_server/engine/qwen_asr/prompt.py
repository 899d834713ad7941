"""The chat prompt around the audio, from the checkpoint's own template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

ASR_TEXT = "<asr_text>"
# Prompts that are kept; the longest that a request may have takes 0.2 MB.
_KEPT = 64


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """The token ids of a prompt around the audio."""

    before: torch.Tensor  # (n,), before the audio embeddings
    after: torch.Tensor  # (n,), after them


class PromptBuilder:
    """Renders the checkpoint's chat template. Keeps the last prompts: the partials of a session have the same."""

    def __init__(self, processor: Any) -> None:
        self.build = lru_cache(_KEPT)(self._build)
        self._processor = processor
        self._tokenizer = processor.tokenizer
        self._control = control_tokens(self._tokenizer)

    def _build(self, *, context: str, language: str | None) -> Prompt:
        """Return the prompt for one clip. `context` goes into the system turn; `language` (the model's name) forces
        it."""
        messages = [
            {"role": "system", "content": clean(self._control, context)},
            {"role": "user", "content": [{"type": "audio", "audio": ""}]},
        ]
        text = self._processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        if language is not None:
            text += f"language {language}{ASR_TEXT}"
        before, after = text.split(self._processor.audio_token)
        return Prompt(self._ids(before), self._ids(after))

    def answer(self, text: str, language: str, *, forced: bool) -> tuple[int, ...]:
        """Return the ids of the answer that says `text` in `language`, after a forced language or none; () where the
        language would have to be named and is not known."""
        text = clean(self._control, text)
        if forced:
            return tuple(self._tokenizer(text).input_ids)
        named = f"language {language}{ASR_TEXT}{text}" if text else "language None"
        return tuple(self._tokenizer(named).input_ids) if language or not text else ()

    def beginnings(self, languages: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Return the ids with which an answer in one of these languages begins."""
        return tuple(tuple(self._tokenizer(f"language {language}{ASR_TEXT}").input_ids) for language in languages)

    @property
    def no_speech_id(self) -> int:
        """Return the token behind "language" that says that there is no speech."""
        return int(self._ids("language None")[1])

    def _ids(self, text: str) -> torch.Tensor:
        return torch.tensor(self._tokenizer(text).input_ids, dtype=torch.long)


def control_tokens(tokenizer: Any) -> list[str]:
    """Return the names of tokens that are no text, longest first, so that none is left over from a piece of another."""
    return sorted(tokenizer.get_added_vocab(), key=len, reverse=True)


def clean(control: Sequence[str], text: str) -> str:
    """`text` without control tokens: they would end the turn or stand for audio that is not there."""
    while any(token in text for token in control):
        for token in control:
            text = text.replace(token, " ")
    return text.strip()
