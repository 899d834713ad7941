"""Decodes generated ids into language, text and offsets in the text, for whole answers and for answers in progress.

Every id is looked up once, and bytes are decoded as they come, so the work grows linearly with the answer.
`answer_test` compares the results with the tokenizer's own decoding of every prefix of an answer.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass

from asr_server.engine import loops
from asr_server.engine.qwen_asr.tokenizer import ASR_TEXT, TextTokenizer

# Byte-level BPE (GPT-2) spells bytes as printable characters: bytes that are not printable become the characters from
# 256 on. This table turns characters back into bytes.
_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
BYTES = {chr(byte): byte for byte in _PRINTABLE}
BYTES |= {chr(256 + n): byte for n, byte in enumerate(sorted({*range(256)} - {*_PRINTABLE}))}
# The character that a decoder writes for invalid bytes.
_UNKNOWN = "\ufffd"
# How an answer begins, before its tag: with a language, or with none if nobody speaks.
_LANGUAGE, _NO_SPEECH = "language ", "language none"
# The SDK folds more than 20 of a character, then 20 or more of a unit of up to 20 characters, except near the end.
_CHARACTERS = re.compile(r"(.)\1{20,}", re.DOTALL)
_UNITS = re.compile(r"(?=.{40})(.{1,20}?)\1{19,}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """The content of some ids, as in `Hypothesis`."""

    language: str  # the model's name, "" for no speech
    text: str
    offsets: tuple[int, ...]  # the length of `text` up to and including each id
    pieces: tuple[bytes, ...]  # the bytes that each id writes


class AnswerReader:
    """Decodes the ids of one tokenizer."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._tag = tokenizer.number(ASR_TEXT)

    def read(self, ids: Sequence[int], language: str | None) -> ParsedAnswer:
        """Read generated ids, which follow a forced `language` unless it is None. Folds a loop to one repetition.

        An answer that was cut off inside a character ends before that character.
        """
        raw = self._tokenizer.text(ids)
        found, text = parsed(raw.rstrip(_UNKNOWN), language)
        start = self.text_start(ids, forced=language is not None) or 0
        tokens = [self._tokenizer.token(number) for number in ids[start:]]
        decoded = [self._decoded(token) for token in tokens]
        offsets = _offsets(decoded, text)
        added = self._tokenizer.added
        pieces = (b"" if token in added else piece for token, piece in zip(tokens, decoded, strict=True))
        return ParsedAnswer(found, text, () if offsets is None else (*[0] * start, *offsets), (*[b""] * start, *pieces))

    def text_start(self, ids: Sequence[int], *, forced: bool) -> int | None:
        """Return where the text begins: after the tag, at 0 if the language was forced, None if there is no tag yet."""
        if forced:
            return 0
        return ids.index(self._tag) + 1 if self._tag is not None and self._tag in ids else None

    def decoded(self, ids: Sequence[int]) -> bytes:
        return b"".join(self._decoded(self._tokenizer.token(number)) for number in ids)

    def _decoded(self, token: str | None) -> bytes:
        # The vocabulary is padded: ids after the tokenizer's last have no token, and the model may still choose them.
        if token is None or self._tokenizer.added.get(token, False):
            return b""
        return bytes(BYTES[char] for char in token) if BYTES.keys() >= set(token) else token.encode()


def parsed(raw: str, language: str | None) -> tuple[str, str]:
    """Return the language and the text of an answer as the SDK does, and fold repetitions that the SDK leaves.
    `language` is the forced language, if any."""
    raw = raw.strip()
    # Search only if needed: the search for repetitions tries each character, which takes milliseconds.
    if repeats := loops.may_repeat(raw):
        raw = _UNITS.sub(r"\1", _CHARACTERS.sub(r"\1", raw))
    named, tag, text = raw.partition(ASR_TEXT)
    if language or not tag:
        found, text = (language or "") if raw else "", raw
    else:
        found, text = _language(named), text.strip()
    return found, loops.collapse(text) if repeats else text


def _language(named: str) -> str:
    """Return the language that an answer names before its tag, "" for no speech."""
    lines = (line.strip() for line in named.splitlines())
    name = next((line[len(_LANGUAGE) :].strip() for line in lines if line.lower().startswith(_LANGUAGE)), "")
    return "" if _NO_SPEECH in named.lower() else name[:1].upper() + name[1:].lower()


class AnswerStream:
    """The text of an answer in progress: only whole characters, and nothing until it is known where the text begins."""

    def __init__(self, reader: AnswerReader, *, forced: bool) -> None:
        self._reader = reader
        self._forced = forced
        self._in_text = False
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # Decoded but not yet returned: blanks and invalid bytes at the end, which are dropped if the answer ends there.
        self._held = ""
        self._given = False

    def feed(self, ids: Sequence[int]) -> str:
        """Return the text that becomes certain with `ids`, the next ids of the answer. All returned texts, joined, are
        the answer's text."""
        if not self._in_text:
            start = self._reader.text_start(ids, forced=self._forced)
            if start is None:
                return ""
            self._in_text, ids = True, ids[start:]
        text = self._held + self._decoder.decode(self._reader.decoded(ids))
        certain = text.rstrip(_UNKNOWN).rstrip()
        self._held = text[len(certain) :]
        if not self._given:
            certain = certain.lstrip()
            self._given = bool(certain)
        return certain


def _offsets(pieces: Sequence[bytes], text: str) -> tuple[int, ...] | None:
    """Return the length of `text` up to and including each piece; None if the pieces do not spell `text` exactly.

    A character whose bytes are spread over several pieces counts with the last of them.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    parts = [decoder.decode(piece) for piece in pieces]
    length, ends = 0, [0]
    for part in parts:
        known = part.rstrip(_UNKNOWN)
        ends.append(length + len(known) if known else ends[-1])
        length += len(part)
    whole = "".join(parts).rstrip(_UNKNOWN)
    if whole.strip() != text:
        return None
    lead = len(whole) - len(whole.lstrip())
    return tuple(min(max(0, end - lead), len(text)) for end in ends[1:])
