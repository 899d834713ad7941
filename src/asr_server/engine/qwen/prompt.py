"""The chat prompt around the audio, and the answer back to language and text, both through the SDK's own code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from asr_server.engine.qwen.sdk import bytes_to_unicode, parse_asr_output
from asr_server.text import repetition

ASR_TEXT = "<asr_text>"
# Byte-level BPE spells bytes as printable characters; this is the way back.
_BYTES = {char: byte for byte, char in bytes_to_unicode().items()}
# What a decoder writes for bytes that are no whole character yet.
_UNFINISHED = "\ufffd"


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """Token ids before and after the audio embeddings, each (n,)."""

    before: torch.Tensor
    after: torch.Tensor


class PromptBuilder:
    """Renders the checkpoint's chat template; caches nothing, since contexts differ."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._tokenizer = processor.tokenizer
        # Longest first, so that no token is left over from a piece of another.
        self._control = sorted(self._tokenizer.get_added_vocab(), key=len, reverse=True)

    def build(self, *, context: str, language: str | None) -> Prompt:
        """The prompt for one clip. `context` goes into the system turn; `language` (the model's name) forces it."""
        messages = [
            {"role": "system", "content": self._clean(context)},
            {"role": "user", "content": [{"type": "audio", "audio": ""}]},
        ]
        text = self._processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        if language is not None:
            text += f"language {language}{ASR_TEXT}"
        before, after = text.split(self._processor.audio_token)
        return Prompt(self._ids(before), self._ids(after))

    @property
    def no_speech_id(self) -> int:
        """The token behind "language" that says that there is no speech."""
        return int(self._ids("language None")[1])

    def _ids(self, text: str) -> torch.Tensor:
        return torch.tensor(self._tokenizer(text).input_ids, dtype=torch.long)

    def _clean(self, context: str) -> str:
        """`context` without control tokens: they would end the turn or stand for audio that is not there."""
        while any(token in context for token in self._control):
            for token in self._control:
                context = context.replace(token, " ")
        return context.strip()


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """What ids say; the fields are those of `Hypothesis`."""

    language: str
    text: str
    offsets: tuple[int, ...]
    pieces: tuple[bytes, ...]


def read(tokenizer: Any, ids: list[int], language: str | None) -> ParsedAnswer:
    """Generated ids, behind a forced `language` or none. Loops are folded to one turn."""
    raw = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    found, text = parse_asr_output(raw, user_language=language)
    text, forced = repetition.collapse(text), language is not None
    return ParsedAnswer(
        found, text, offsets(tokenizer, ids, text, forced=forced), pieces(tokenizer, ids, forced=forced)
    )


def partial_text(tokenizer: Any, ids: list[int], *, forced: bool) -> str:
    """The text of an unfinished answer: whole characters only, and nothing before it is clear where the text begins."""
    tag = tokenizer.convert_tokens_to_ids(ASR_TEXT)
    if not forced and tag not in ids:
        return ""
    text = tokenizer.backend_tokenizer.decode(ids if forced else ids[ids.index(tag) + 1 :])
    return str(text).rstrip(_UNFINISHED).strip()


def pieces(tokenizer: Any, ids: list[int], *, forced: bool) -> tuple[bytes, ...]:
    """The bytes that each id writes; b"" for those up to the tag behind the language, and for control tokens."""
    tag = tokenizer.convert_tokens_to_ids(ASR_TEXT)
    start = 0 if forced or tag not in ids else ids.index(tag) + 1
    added = tokenizer.get_added_vocab()
    tokens = tokenizer.convert_ids_to_tokens(ids[start:])
    # The vocabulary is padded: ids behind the tokenizer's last have no token, and an untrained row may still win.
    written = (b"" if token is None or token in added else bytes(_BYTES[c] for c in token) for token in tokens)
    return (*[b""] * start, *written)


def offsets(tokenizer: Any, ids: list[int], text: str, *, forced: bool) -> tuple[int, ...]:
    """For each id the length of `text` once it is there, () when `text` is not what the ids say letter by letter.

    A character whose bytes are spread over several ids counts with the last of them. `forced`: the language was, so the
    ids are text from the first on.
    """
    decode = tokenizer.backend_tokenizer.decode
    tag = tokenizer.convert_tokens_to_ids(ASR_TEXT)
    start = 0 if forced or tag not in ids else ids.index(tag) + 1
    text_ids = ids[start:]
    whole = decode(text_ids)
    lead = len(whole) - len(whole.lstrip())
    if whole.strip() != text:
        return ()
    lengths = (len(decode(text_ids[:n]).rstrip(_UNFINISHED)) - lead for n in range(1, len(text_ids) + 1))
    return (*[0] * start, *(min(max(0, length), len(text)) for length in lengths))
