"""The voices and languages of eSpeak NG, read from its data.

A voice is one of its variants, which speaks every language: the library names it `LANGUAGE+VARIANT`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from asr_server.engine.speech.protocol import SpeechTraits, Voice

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
# Languages of the library under other codes than those of ISO 639 that people send.
_OTHER_CODES = {"zh": "cmn", "no": "nb"}
# It cannot read Chinese characters as Japanese.
_PARTLY_READ = {"ja"}
_CODE = re.compile(r"[a-z]{2,3}(-([a-z]{2}|\d{3}))?")
_DEFAULT_DIALECT = {"en": "en-us", "fr": "fr-fr"}


def traits(data: Path) -> SpeechTraits:
    """What the engine can do with this data."""
    voices = tuple(Voice(name, what) for name, what in _VARIANTS.items() if (data / "voices" / "!v" / name).is_file())
    known = {voice.id for voice in voices}
    openai = {name: variant for name, variant in OPENAI_VOICES.items() if variant in known}
    codes = sorted(set(languages(data)) - _PARTLY_READ)
    return SpeechTraits(voices=voices, openai_voices=openai, languages=tuple(codes))


@cache
def languages(data: Path) -> dict[str, str]:
    """The library's language for each code that requests can name: dialects, and languages without one.

    The library knows a language by the name of its file alone: British English is `en`.
    """
    files = [path for path in sorted((data / "lang").rglob("*")) if path.is_file()]
    named = [(tag, path.name.lower()) for path in files for tag in _tags(path)]
    exact = dict(sorted(named, key=lambda pair: pair[0] == pair[1]))
    general: dict[str, str] = {}
    for tag in sorted(exact):
        general.setdefault(tag.partition("-")[0], exact[tag])
    found = general | exact
    aliases = {code: found[other] for code, other in (_OTHER_CODES | _DEFAULT_DIALECT).items() if other in found}
    return found | aliases


def _tags(path: Path) -> Iterator[str]:
    """The first language tag of a file, which is that of no other."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("language "):
            tag = line.split()[1].lower()
            if _CODE.fullmatch(tag):
                yield tag
            return
