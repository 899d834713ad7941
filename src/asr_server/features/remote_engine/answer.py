"""Answers of servers with OpenAI's transcriptions: JSON, OpenAI's events, and the chunks of vLLM. Pure.

vLLM streams the raw output of Qwen3-ASR, which begins with the language: `language English<asr_text>turn on`.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from asr_server.core.errors import InvalidInput
from asr_server.text import languages

_HEAD, _MARK = "language ", "<asr_text>"
_MAX_HEAD_CHARS = 64  # with the mark; a longer beginning without a mark is text


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, as far as it has been received."""

    raw: str = ""  # all that was received
    told_language: str = ""  # the model's name, "" if the server does not name the language
    is_whole: bool = False
    is_cut: bool = False  # the server ended it at its length limit
    prompt_tokens: int = 0  # 0 if the server does not count them
    audio_tokens: int = 0  # as above

    def read(self) -> tuple[str, str]:
        """Return the model's name of the language, "" if it is unknown, and the text, "" until its beginning is
        known."""
        head, mark, text = self.raw.partition(_MARK)
        if mark and head.startswith(_HEAD) and len(head + mark) <= _MAX_HEAD_CHARS:
            return _name(head.removeprefix(_HEAD)), text.strip()
        is_head = self.raw.startswith(_HEAD[: len(self.raw)]) and len(self.raw) < _MAX_HEAD_CHARS
        return self.told_language, "" if is_head and not self.is_whole else self.raw.strip()


class AnswerRefused(Exception):
    """The server sent an error instead of an answer."""


def added(answer: Answer, data: bytes) -> Answer:
    """Return the answer with the data of one more event; a JSON answer is a single event.

    Raises `ValueError` if the data is not an event, and `AnswerRefused`.
    """
    if data.strip() == b"[DONE]":
        return replace(answer, is_whole=True)
    event: Any = json.loads(data)
    match event:
        case {"type": "error"} | {"error": {} | str()}:
            raise AnswerRefused
        case {"type": "transcript.text.delta", "delta": str(delta)}:
            return replace(answer, raw=answer.raw + delta)
        case {"choices": list(choices)}:
            for choice in choices:
                is_cut = answer.is_cut or choice.get("finish_reason") == "length"
                content = (choice.get("delta") or {}).get("content") or ""
                answer = replace(answer, raw=answer.raw + content, is_cut=is_cut)
        case {"type": "transcript.text.done", "text": str(text)} | {"text": str(text)}:
            # Keep streamed text. A server that does not stream sends the text here.
            answer = replace(answer, raw=answer.raw or text, is_whole=True)
    match event:  # as OpenAI's newer models and as whisper name it
        case {"languages": [{"code": str(name)}, *_]} | {"language": str(name)}:
            answer = replace(answer, told_language=_name(name))
    match event:  # as OpenAI's newer models and as vLLM count them
        case {"usage": {"input_token_details": {"text_tokens": int(prompt), "audio_tokens": int(audio)}}}:
            return replace(answer, prompt_tokens=prompt, audio_tokens=audio)
        case {"usage": {"prompt_tokens": int(prompt)}}:
            return replace(answer, prompt_tokens=prompt)
        case dict():
            return answer
    raise ValueError("no event")


def _name(name: str) -> str:
    with suppress(InvalidInput):  # "None" for no speech, and languages that this server does not know
        return languages.normalize(name) or ""
    return ""
