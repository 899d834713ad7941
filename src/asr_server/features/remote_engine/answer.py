"""Reads the answers of servers with OpenAI's transcriptions: JSON, OpenAI's events, and the chunks of vLLM. Pure.

vLLM streams what Qwen3-ASR writes as it is, beginning with the language: `language English<asr_text>turn on`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from asr_server.core.errors import InvalidInput
from asr_server.text import languages

_LANGUAGE, _TEXT = "language ", "<asr_text>"
# The most characters before the mark of the text; if more come, they are text.
_MAX_HEAD_CHARS = 64


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as far as it is known. Numbers of tokens are 0 if the server does not tell them."""

    raw: str = ""  # everything that was written
    language: str = ""  # the model's name, "" if the server did not tell it
    is_whole: bool = False  # its end has come
    is_cut: bool = False  # it ended because it was as long as it may be
    prompt_tokens: int = 0
    audio_tokens: int = 0

    @property
    def text(self) -> str:
        """Return the text without the language before it and blanks around it; "" while it is not known where it
        begins."""
        if (head := self._head) is not None:
            return self.raw[len(head) + len(_TEXT) :].strip()
        may_be_head = self.raw.startswith(_LANGUAGE[: len(self.raw)]) and len(self.raw) < _MAX_HEAD_CHARS
        return "" if may_be_head and not self.is_whole else self.raw.strip()

    @property
    def spoken_language(self) -> str:
        """Return the model's name of the language, "" if it was not told."""
        head = self._head
        return self.language if head is None else _name(head.removeprefix(_LANGUAGE))

    @property
    def _head(self) -> str | None:
        """Return what stands before the mark of the text; None without a mark."""
        head, mark, _ = self.raw[:_MAX_HEAD_CHARS].partition(_TEXT)
        return head if mark and head.startswith(_LANGUAGE) else None


class Refused(Exception):
    """The stream brings an error in place of an answer."""


def whole(body: bytes) -> Answer:
    """Return a JSON answer. Raises `ValueError` for anything else."""
    content = json.loads(body)
    if not isinstance(content, dict) or not isinstance(content.get("text"), str):
        raise ValueError("no transcription")
    return _with_facts(Answer(content["text"], is_whole=True), content)


def added(answer: Answer, line: str) -> Answer:
    """Return the answer with the next line of an event stream. Raises `ValueError` for a line that is none,
    `Refused`."""
    name, _, data = line.partition(":")
    if name != "data" or not data.strip():
        return answer
    if data.strip() == "[DONE]":
        return replace(answer, is_whole=True)
    event = json.loads(data)
    if not isinstance(event, dict):
        raise ValueError("no event")
    if event.get("error") or event.get("type") == "error":
        raise Refused
    if event.get("type") == "transcript.text.delta":
        return replace(answer, raw=answer.raw + _string(event.get("delta")))
    if event.get("type") == "transcript.text.done":
        # Text that was streamed is kept; a server that streams nothing has the text here.
        rest = _string(event.get("text"))
        return _with_facts(replace(answer, raw=answer.raw or rest, is_whole=True), event)
    for choice in event.get("choices") or ():
        text = _string((choice.get("delta") or {}).get("content"))
        cut = answer.is_cut or choice.get("finish_reason") == "length"
        answer = replace(answer, raw=answer.raw + text, is_cut=cut)
    return _with_facts(answer, event)


def _with_facts(answer: Answer, content: dict[str, Any]) -> Answer:
    """Return the answer with the language and the usage, as OpenAI's newer models, whisper's and vLLM tell them."""
    listed = content.get("languages") or ()
    told = listed[0].get("code") if listed and isinstance(listed[0], dict) else content.get("language")
    usage = content.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("input_token_details")
    details = details if isinstance(details, dict) else {}
    return replace(
        answer,
        language=_name(_string(told)) or answer.language,
        prompt_tokens=_count(details.get("text_tokens", usage.get("prompt_tokens"))) or answer.prompt_tokens,
        audio_tokens=_count(details.get("audio_tokens")) or answer.audio_tokens,
    )


def _name(told: str) -> str:
    try:
        return languages.normalize(told) or ""
    except InvalidInput:  # "None" for no speech, and languages that this server does not know
        return ""


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0
