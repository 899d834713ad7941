"""Finds fonts of this machine that have the characters of a text. fontTools reads which characters a font has."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from pathlib import Path

from loguru import logger

from asr_server.core.errors import UnsupportedValue

FOLDERS = tuple(
    Path(folder)
    for folder in (
        *("/usr/local/share/fonts", "/usr/share/fonts", "/Library/Fonts", "/System/Library/Fonts"),
        "C:/Windows/Fonts",
    )
)
# Fonts of one machine that are looked at, the most suitable first.
_MOST_FONTS = 500
_SUFFIXES = frozenset({".ttf", ".otf", ".ttc", ".otc"})
# Upright fonts of usual weight and width come first, and among them families for long texts.
_SPECIAL = re.compile(
    "bold|italic|oblique|mono|light|thin|black|condensed|medium|semi|extra|narrow|emoji|symbol|math|display", re.I
)
_FAMILIES = ("notosans", "dejavusans", "liberationsans", "arial", "notoserif")
# Characters that show nothing by themselves: variation selectors, and those that format.
_SELECTORS = frozenset(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0), *range(0x180B, 0x180E))))
_MOST_NAMES = 5


def covering(text: str) -> list[Path]:
    """Return as few fonts as possible that together have the characters of the text, the one with most of it first.

    Raises `UnsupportedValue`, with the scripts that are missing, where the machine has no such fonts.
    """
    needed = _mask(char for char in set(text) if not _is_invisible(char))
    found: list[Path] = []
    files = _files(FOLDERS)
    # One font for all of a text looks better than several, and shapes marks across scripts.
    for file in files:
        if needed and not needed & ~_characters(file):
            return [file]
    for file in files:
        if needed & _characters(file):
            found.append(file)
            needed &= ~_characters(file)
    if needed:
        raise UnsupportedValue(
            f"A PDF of this text needs a font with {_names(needed)} characters, and this machine has none: install one "
            "(in Debian fonts-noto-core and fonts-noto-cjk), or ask for docx or markdown.",
            param="response_format",
        )
    return found


def _is_invisible(char: str) -> bool:
    return char == " " or char in _SELECTORS or unicodedata.category(char) == "Cf"


def _mask(characters: Iterable[str]) -> int:
    """Return a number with a bit for each character."""
    mask = 0
    for char in characters:
        mask |= 1 << ord(char)
    return mask


def _names(mask: int) -> str:
    """Return the first words of the characters' names, which are their scripts."""
    codes = (code for code in range(mask.bit_length()) if mask >> code & 1)
    names = {unicodedata.name(chr(code), "UNKNOWN").split(" ")[0] for code in codes}
    return ", ".join(sorted(names)[:_MOST_NAMES])


@cache
def _files(folders: Sequence[Path]) -> list[Path]:
    """Return the fonts below the folders, the most suitable first. They are looked for once."""
    found = [file for folder in folders for file in folder.rglob("*") if file.suffix.lower() in _SUFFIXES]
    return sorted(found, key=_rank)[:_MOST_FONTS]


def _rank(file: Path) -> tuple[int, int, int, str]:
    name = file.stem.lower().replace("-", "")
    family = next((place for place, family in enumerate(_FAMILIES) if name.startswith(family)), len(_FAMILIES))
    return len(_SPECIAL.findall(name)), family, len(name), str(file)


@lru_cache(maxsize=_MOST_FONTS)
def _characters(file: Path) -> int:
    """Return the mask of the characters of a font, 0 for one that cannot be read."""
    from fontTools.ttLib import TTFont, TTLibError

    try:
        with file.open("rb") as content, TTFont(content, fontNumber=0, lazy=True) as font:
            codes = bytearray(0x110000 // 8)
            for code in font.getBestCmap() or {}:
                codes[code // 8] |= 1 << code % 8
    except (TTLibError, OSError, ValueError, KeyError, AssertionError) as error:
        logger.warning("a font cannot be read", file=file.name, error=str(error))
        return 0
    return int.from_bytes(codes, "little")
