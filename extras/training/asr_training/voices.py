"""The voices for training, development and evaluation.

Held-out voices are in no training set: neither in this one nor in that of the starting weights. The checkpoint to keep
is chosen on development voices, never on held-out ones.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum, StrEnum

from asr_training.vocabulary import Language


class Engine(StrEnum):
    """A speech synthesiser, named as its Debian package."""

    ESPEAK = "espeak-ng"
    FLITE = "flite"
    FESTIVAL = "festival"


class Role(Enum):
    """The use of a set of voices."""

    TRAINING = "training"
    DEVELOPMENT = "development"
    HELD_OUT = "held-out"


@dataclass(frozen=True)
class Voice:
    """One voice of one synthesiser, by the name the synthesiser knows it under."""

    engine: Engine
    name: str
    language: Language


@dataclass(frozen=True)
class Style:
    """The style of a voice."""

    rate: int = 165  # words per minute; about 165 is neutral
    pitch: int = 50  # 0 to 100, as espeak-ng counts it
    pitch_range: int = 50  # 0 to 100, as espeak-ng counts it


TRAINING_LOCALES = ("en-us", "en", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbclan")
TRAINING_VARIANTS = (
    *("f1", "f2", "f3", "f4", "f5", "m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8"),
    *("Alex", "Alicia", "Andrea", "Andy", "Annie", "antonio", "aunty", "caleb", "david", "Denis", "Diogo", "ed"),
    *("edward", "grandma", "grandpa", "Henrique", "Hugo", "iven", "iven2", "Jacky", "kaukovalta", "klatt", "klatt2"),
    *("klatt3", "klatt4", "Lee", "linda", "marcelo", "Michael", "michel", "miguel", "Mike", "Nguyen", "pablo", "paul"),
    *("pedro", "rob", "sandro", "steph", "steph2", "steph3", "victor", "zac", "announcer"),
)
FLITE_VOICES = ("kal16", "awb", "rms", "slt")

DEVELOPMENT_LOCALES = ("en-us", "en", "en-gb-x-gbcwmd")
DEVELOPMENT_VARIANTS = ("benjamin", "iven3", "john", "klatt5", "Mario", "max", "norbert", "shelby")

HELD_OUT_LOCALES = ("en-us", "en-us-nyc", "en-029", "en")
HELD_OUT_VARIANTS = (
    *("adam", "anika", "belinda", "boris", "edward2", "Gene", "Gene2", "gustave", "iven4", "klatt6", "Marco"),
    *("quincy", "robert", "travis"),
)
# kal_diphone and cmu_us_slt_arctic_hts share their speakers with two flite training voices, but are synthesised in
# other ways. The speaker of ked_diphone is in no training data.
FESTIVAL_VOICES = ("kal_diphone", "cmu_us_slt_arctic_hts", "ked_diphone")


def _espeak(locales: tuple[str, ...], variants: tuple[str, ...]) -> tuple[Voice, ...]:
    # Every variant with every locale: the variant carries timbre and pitch, the locale the accent.
    names = [f"{locale}+{variant}" for variant in variants for locale in locales]
    return tuple(Voice(Engine.ESPEAK, name, Language.ENGLISH) for name in names)


def _mandarin(variants: tuple[str, ...]) -> tuple[Voice, ...]:
    return tuple(Voice(Engine.ESPEAK, f"cmn+{variant}", Language.CHINESE) for variant in variants)


def voices(role: Role, language: Language) -> tuple[Voice, ...]:
    """All voices of `language` with this role, in a fixed order."""
    english = language is Language.ENGLISH
    if role is Role.TRAINING:
        flite = tuple(Voice(Engine.FLITE, name, Language.ENGLISH) for name in FLITE_VOICES)
        return _espeak(TRAINING_LOCALES, TRAINING_VARIANTS) + flite if english else _mandarin(TRAINING_VARIANTS)
    if role is Role.DEVELOPMENT:
        return _espeak(DEVELOPMENT_LOCALES, DEVELOPMENT_VARIANTS) if english else _mandarin(DEVELOPMENT_VARIANTS)
    festival = tuple(Voice(Engine.FESTIVAL, name, Language.ENGLISH) for name in FESTIVAL_VOICES)
    return _espeak(HELD_OUT_LOCALES, HELD_OUT_VARIANTS) + festival if english else _mandarin(HELD_OUT_VARIANTS)


def random_style(rng: random.Random, language: Language) -> Style:
    """Return a random style within the range that the starting weights were trained on."""
    fastest = 200 if language is Language.ENGLISH else 165
    return Style(rng.randint(105, fastest), rng.randint(20, 80), rng.randint(25, 75))
