"""Random phrases over the vocabulary: commands, digit strings, random words."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from asr_training.vocabulary import COLOURS, DAYS, DIGITS, ENGLISH_WORDS, MANDARIN_ITEMS, NUMBERS, ROOMS, Language

SLOTS = {"room": ROOMS, "colour": COLOURS, "day": DAYS, "number": NUMBERS, "digit": DIGITS}
TEMPLATES = (
    "turn on the {room} lights",
    "turn off the {room} lights please",
    "please turn on the {room} lights",
    "turn the {room} lights on",
    "turn the {room} lights off",
    "turn off the music",
    "set the {room} lights to {colour}",
    "turn the lights to {colour} please",
    "set my {room} lights to {colour}",
    "play music",
    "play my music please",
    "play my {room} music",
    "stop the music",
    "stop",
    "next",
    "previous",
    "play the next music",
    "play the previous music",
    "volume up",
    "volume down please",
    "turn the volume up",
    "turn down the volume",
    "set the volume to {number}",
    "set a timer for {number} minutes",
    "set a timer for {number} seconds",
    "set a timer for {number} hours and {number} minutes",
    "call {digit} {digit} {digit} {digit}",
    "please call {digit} {digit} {digit}",
    "open the door",
    "close the door",
    "open the {room} window",
    "close the window and open the door",
    "open my {room} door please",
    "what is the time",
    "what is the time please",
    "what is the weather today",
    "what is the weather tomorrow",
    "what is the weather on {day}",
    "hello",
    "hello please {day} to {day}",
    "goodbye",
    "yes",
    "no",
    "yes please",
    "no stop the music",
    "hello what is the time",
    "call my {room}",
    "{day} and {day}",
    "{number} hundred",
    "{number} thousand {number} hundred and {number}",
    "{colour} and {colour}",
    "set the timer to {number} hundred seconds",
)


def _filled(rng: random.Random, template: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda slot: rng.choice(SLOTS[slot[1]]), template)


def command(rng: random.Random) -> str:
    """One or more household commands."""
    text = _filled(rng, rng.choice(TEMPLATES))
    return text if rng.random() < 0.8 else f"{text} {command(rng)}"


def digit_string(rng: random.Random) -> str:
    return " ".join(rng.choices(DIGITS, k=rng.randint(1, 9)))


def random_words(rng: random.Random) -> str:
    """One to eight words in random order, which cannot be guessed from the text before."""
    return " ".join(rng.choices(ENGLISH_WORDS, k=rng.randint(1, 8)))


def single_word(rng: random.Random) -> str:
    return rng.choice(ENGLISH_WORDS)


ENGLISH_KINDS: tuple[tuple[Callable[[random.Random], str], float], ...] = (
    (command, 0.42),
    (digit_string, 0.24),
    (random_words, 0.24),
    (single_word, 0.10),
)


def mandarin(rng: random.Random) -> str:
    """One to seven Mandarin items, half of the time with blanks (small pauses) between them."""
    items = rng.choices(MANDARIN_ITEMS, k=rng.randint(1, 7))
    return (" " if rng.random() < 0.5 else "").join(items)


def phrase(rng: random.Random, language: Language) -> str:
    """A random phrase of `language`, as a synthesiser reads it."""
    if language is Language.CHINESE:
        return mandarin(rng)
    makers, weights = zip(*ENGLISH_KINDS, strict=True)
    maker: Callable[[random.Random], str] = rng.choices(makers, weights)[0]
    return maker(rng)
