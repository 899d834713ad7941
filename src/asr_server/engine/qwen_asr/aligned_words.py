"""Splits a text into the words that the aligner was trained to time. A test compares them with the SDK's words."""

from __future__ import annotations

import functools
import importlib
import re
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from asr_server.core.errors import UnsupportedLanguage

# Each Chinese character is a word.
_CHINESE = re.compile(
    "([\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f"
    "\U0002b820-\U0002ceaf])"
)
# The Korean words of at least two letters in the SDK's list.
_KOREAN_WORDS = Path(__file__).with_name("korean_words.txt")


def words(text: str, language: str) -> list[str]:
    """Divide `text` into words without punctuation. Raises `UnsupportedLanguage`."""
    match language.lower():
        case "japanese":
            return _kept(_japanese(text))
        case "korean":
            return _kept([part for word in text.split() for part in _korean(word)])
        case _:
            return [part for word in _kept(text.split()) for part in _CHINESE.split(word) if part]


def _kept(found: list[str]) -> list[str]:
    """Return the letters, digits and apostrophes of each word that has any."""
    kept = ("".join(c for c in word if c == "'" or unicodedata.category(c)[0] in "LN") for word in found)
    return [word for word in kept if word]


def _japanese(text: str) -> list[str]:
    if find_spec("nagisa") is None:
        raise UnsupportedLanguage("Japanese words are timed with nagisa, which is missing: pip install '.[ja]'.")
    # Import it in a thread of its own: it loads a library compiled with -ffast-math, and from then on the loading
    # thread takes subnormal numbers for 0, in torch too.
    with ThreadPoolExecutor(1) as loader:
        nagisa = loader.submit(importlib.import_module, "nagisa").result()
    found: list[str] = nagisa.tagging(text).words
    return found


def _korean(word: str) -> tuple[str, str]:
    """Split a word after its longest prefix that is a known word."""
    known = _korean_words()
    end = next((end for end in range(len(word), 1, -1) if word[:end] in known), len(word))
    return word[:end], word[end:]


@functools.cache
def _korean_words() -> frozenset[str]:
    return frozenset(_KOREAN_WORDS.read_text(encoding="utf-8").split())
