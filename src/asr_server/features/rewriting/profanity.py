"""Finds the words and phrases of the operator's lists in a text: only whole words, in upper or lower case.

The server has no list of its own. Published lists have many words that offend nobody, such as the German words for
donkey and for distance. The operator decides which words a page must not show.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from asr_server.features.rewriting.edits import Edit
from asr_server.recordings.requests import Profanity
from asr_server.text import languages

KIND = "profanity"
_WORD = re.compile(r"\w+(?:['’-]\w+)*")
_MAX_FILE_BYTES = 2**20
_MAX_WORDS = 8  # of a phrase
_HIDDEN = "****"
# Words are found by the blanks and punctuation between them, which these languages lack.
_UNSPACED = frozenset(["zh", "yue", "ja", "th"])


def masked(text: str, entries: Collection[str], how: Profanity) -> Iterator[Edit]:
    """Yield the edits that mask the words of a list, in order and disjoint."""
    found, at = list(_WORD.finditer(text)), 0
    while at < len(found):
        count = next((n for n in range(_MAX_WORDS, 0, -1) if _key(found[at : at + n]) in entries), 0)
        for match in found[at : at + count]:
            shown = _HIDDEN if how is Profanity.HIDE else match[0][0] + "*" * (len(match[0]) - 1)
            yield Edit(*match.span(), shown, KIND)
        at += count or 1


def read_lists(folder: Path) -> Mapping[str, frozenset[str]]:
    """Return the lists of the files `en.txt`, `de.txt` and so on, by the ISO codes of their languages.

    A line has a word or a phrase; empty lines and lines that begin with `#` are skipped. Raises `ValueError` with a
    sentence if the folder has no such file, or has one that cannot be used.
    """
    try:
        lists = {path.stem: _read(path) for path in sorted(folder.iterdir()) if path.suffix == ".txt"}
    except OSError as error:
        raise ValueError(f"it cannot be read ({error.strerror})") from None
    if not lists:
        raise ValueError("there is no file such as en.txt in it")
    return lists


def _read(path: Path) -> frozenset[str]:
    if path.stem not in map(languages.code, languages.model_languages()):
        raise ValueError(f"{path.name} is not named after the ISO code of a language that is recognised")
    if path.stem in _UNSPACED:
        raise ValueError(f"{path.name} has no effect: its language is written without spaces between words")
    if path.stat().st_size > _MAX_FILE_BYTES:
        raise ValueError(f"{path.name} is larger than {_MAX_FILE_BYTES:_} bytes")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not in UTF-8") from None
    phrases = [list(_WORD.finditer(line)) for line in lines if not line.startswith("#")]
    if any(len(phrase) > _MAX_WORDS for phrase in phrases):
        raise ValueError(f"{path.name} has a line of more than {_MAX_WORDS} words")
    entries = frozenset(_key(phrase) for phrase in phrases if phrase)
    if not entries:
        raise ValueError(f"{path.name} has no words")
    return entries


def _key(phrase: list[re.Match[str]]) -> str:
    return " ".join(match[0].casefold().replace("’", "'") for match in phrase)
