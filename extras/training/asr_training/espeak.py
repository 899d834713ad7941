"""Speech by the espeak-ng library, which reports the sample at which each word begins."""

from __future__ import annotations

import ctypes
import ctypes.util
import re
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from asr_training.speech import Speech, SynthesisUnavailable, Wave, WordsNotPlaced, at_16k, between
from asr_training.vocabulary import Language
from asr_training.voices import Style, Voice


class _EventName(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    """`espeak_EVENT` of speak_lib.h, version 1.51."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _EventName),
    )


_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))
_SYNCHRONOUS, _UTF8, _END_OF_LIST, _WORD = 2, 1, 0, 1
_RATE, _PITCH, _PITCH_RANGE = 1, 3, 4


class _Espeak:
    """The espeak-ng library. It keeps one global state per process, hence one instance per process."""

    def __init__(self) -> None:
        name = ctypes.util.find_library("espeak-ng") or "libespeak-ng.so.1"
        try:
            self._library = ctypes.CDLL(name)
        except OSError as error:
            raise SynthesisUnavailable("libespeak-ng not found: install the Debian package espeak-ng") from error
        self.rate: int = self._library.espeak_Initialize(_SYNCHRONOUS, 500, None, 0)
        self._pieces: list[NDArray[np.int16]] = []
        self._starts: dict[int, int] = {}
        # Kept as an attribute: ctypes does not hold on to a callback that C still calls.
        self._callback = _CALLBACK(self._receive)
        self._library.espeak_SetSynthCallback(self._callback)

    def _receive(self, samples: ctypes._Pointer, count: int, events: ctypes._Pointer) -> int:
        if count > 0:
            self._pieces.append(np.ctypeslib.as_array(samples, (count,)).copy())
        index = 0
        while events[index].type != _END_OF_LIST:
            if events[index].type == _WORD:
                self._starts[events[index].text_position - 1] = events[index].sample
            index += 1
        return 0

    def say(self, voice: str, style: Style, text: str) -> tuple[Wave, dict[int, int]]:
        """Samples at `self.rate` and, for each character of `text` that begins a spoken word, its first sample."""
        self._pieces, self._starts = [], {}
        if self._library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise SynthesisUnavailable(f"espeak-ng has no voice {voice}")
        for parameter, value in ((_RATE, style.rate), (_PITCH, style.pitch), (_PITCH_RANGE, style.pitch_range)):
            self._library.espeak_SetParameter(parameter, value, 0)
        data = text.encode()
        self._library.espeak_Synth(data, len(data) + 1, 0, 1, 0, _UTF8, None, None)
        self._library.espeak_Synchronize()
        if not self._pieces:
            raise WordsNotPlaced(text)
        return np.concatenate(self._pieces).astype(np.float32) / np.float32(32768), self._starts


def espeak_speech(voice: Voice, style: Style, text: str) -> Speech:
    """Untrimmed speech at 16 kHz; a Mandarin word is one character. Raises `WordsNotPlaced` for skipped text."""
    samples, starts = _espeak().say(voice.name, style, text)
    pattern = r"\S+" if voice.language is Language.ENGLISH else r"\S"
    units = [(match.start(), match[0]) for match in re.finditer(pattern, text)]
    if not units or units[0][0] not in starts:
        raise WordsNotPlaced(text)
    begins = _filled([starts.get(place) for place, _ in units], [word for _, word in units], len(samples))
    words = between(begins, len(samples), [word for _, word in units], _espeak().rate)
    return Speech(at_16k(samples, _espeak().rate), words)


@cache
def _espeak() -> _Espeak:
    return _Espeak()


def _filled(starts: Sequence[int | None], words: Sequence[str], end: int) -> list[float]:
    """Return the starts of all words. Pairs such as "on the" are one event in espeak-ng and are divided by letters."""
    known = [index for index, start in enumerate(starts) if start is not None]
    filled: list[float] = []
    for index, following in zip(known, [*known[1:], len(words)], strict=True):
        first = float(starts[index] or 0)
        last = float(end if following == len(words) else starts[following] or 0)
        letters = np.cumsum([0, *(len(word) for word in words[index:following])])
        filled += [first + (last - first) * float(part) for part in letters[:-1] / letters[-1]]
    return filled
