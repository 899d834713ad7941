"""The voices and languages of eSpeak NG, read from its data.

Each voice is a variant of eSpeak NG that speaks every language. The library names it `LANGUAGE+VARIANT`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from asr_server.features.speech_output.engines.protocol import SpeechTraits, Voice

# The variants differ in pitch, formants and roughness. Those with effects (robots, whispers) are left out.
_VARIANTS = {
    "m1": "a man",
    "m2": "a man",
    "m3": "a man, deep",
    "m4": "a man",
    "m5": "a man, rough",
    "m6": "a man, high",
    "m7": "a man, deep",
    "m8": "a man, bright",
    "f1": "a woman",
    "f2": "a woman",
    "f3": "a woman",
    "f4": "a woman, deep",
    "f5": "a woman, high",
}
OPENAI_VOICES = {
    "alloy": "m3",
    "ash": "m1",
    "ballad": "m8",
    "cedar": "m7",
    "coral": "f1",
    "echo": "m2",
    "fable": "m4",
    "marin": "f4",
    "nova": "f2",
    "onyx": "m7",
    "sage": "f5",
    "shimmer": "f3",
    "verse": "m6",
}
# eSpeak NG cannot read Chinese characters as Japanese.
_PARTLY_READ = {"ja"}
_CODE = re.compile(r"[a-z]{2,3}(-([a-z]{2}|\d{3}))?")
# For English the files prefer the British voice.
_DEFAULT_DIALECTS = {"en": "en-us"}
_USUAL_RANK = 5  # voice.c
# Two cores of 2026 make about a hundred seconds of speech in a second.
_FIRST_GUESS_SPEED = 50.0
_LICENCE = "GPL-3.0-or-later"


def traits(data: Path) -> SpeechTraits:
    """Return what the engine can do with this data."""
    voices = tuple(
        Voice(name, what, licence=_LICENCE)
        for name, what in _VARIANTS.items()
        if (data / "voices" / "!v" / name).is_file()
    )
    known = {voice.id for voice in voices}
    openai = {name: variant for name, variant in OPENAI_VOICES.items() if variant in known}
    codes = sorted(set(languages(data)) - _PARTLY_READ)
    return SpeechTraits(
        voices=voices, openai_voices=openai, languages=tuple(codes), first_guess_speed=_FIRST_GUESS_SPEED
    )


@cache
def languages(data: Path) -> dict[str, str]:
    """Return the library's name of the language for each code that requests can name: dialects, and languages without
    a dialect.

    The name is the name of a file. If several files have a code, the file that gives it the lowest rank is used.
    """
    found: dict[str, str] = {}
    for _, code, name in sorted(
        ranked for path in (data / "lang").rglob("*") if path.is_file() for ranked in _of(path)
    ):
        found.setdefault(code, name)
    for code, name in list(found.items()):
        found.setdefault(code.partition("-")[0], name)
    return found | {code: found[dialect] for code, dialect in _DEFAULT_DIALECTS.items() if dialect in found}


def _of(path: Path) -> Iterator[tuple[tuple[int, int], str, str]]:
    """Yield the language tags of a file as (rank, code, name of the file); shorter names first among equals."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        match line.split():
            case ["language", tag, *rank] if _CODE.fullmatch(tag.lower()):
                yield (int(rank[0]) if rank else _USUAL_RANK, len(path.name)), tag.lower(), path.name
