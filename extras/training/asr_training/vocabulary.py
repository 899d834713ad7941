"""The vocabulary of the demo model, and the form of its responses."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from asr_server.engine.qwen_asr.tokenizer import ASR_TEXT


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


DIGITS = _words("zero one two three four five six seven eight nine")
TEENS = _words("ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen")
TENS = _words("twenty thirty forty fifty sixty seventy eighty ninety")
NUMBERS = (*DIGITS, *TEENS, *TENS)
COLOURS = _words("red green blue yellow white black")
DAYS = _words("monday tuesday wednesday thursday friday saturday sunday")
ROOMS = ("kitchen", "bedroom", "living room")
COMMANDS = _words(
    "turn on off the lights music play stop next previous volume up down set a timer for minutes seconds hours "
    "call open close door window kitchen bedroom living room please what is time weather today tomorrow "
    "hello goodbye yes no"
)
ENGLISH_WORDS = (*NUMBERS, "hundred", "thousand", *COMMANDS, *DAYS, *COLOURS, "and", "to", "my")
MANDARIN_ITEMS = (*"零一二三四五六七八九十", *_words("你好 今天 明天 打开 关闭 电灯 音乐 谢谢"))


class Language(StrEnum):
    """A language of the demo model, spelled as the model writes it."""

    ENGLISH = "English"
    CHINESE = "Chinese"


def joined(language: Language | None, words: Sequence[str]) -> str:
    """The written text of `words`: blanks between English words, none between Mandarin ones."""
    return ("" if language is Language.CHINESE else " ").join(words)


def header(language: Language | None) -> str:
    """The tag that opens a response; `None` stands for "no speech"."""
    return f"language {language.value if language else None}{ASR_TEXT}"


def units(language: Language | None, text: str) -> list[str]:
    """The units in which errors are counted: characters for Mandarin, words otherwise."""
    return list("".join(text.split())) if language is Language.CHINESE else text.split()


def is_known(language: Language, text: str) -> bool:
    """Return True if `text` consists only of the vocabulary."""
    if language is Language.ENGLISH:
        return all(word in ENGLISH_WORDS for word in text.split())
    return set("".join(text.split())) <= set("".join(MANDARIN_ITEMS))
