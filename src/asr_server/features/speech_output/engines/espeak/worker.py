"""The process of eSpeak NG: loads the library once, then forks one confined child for each sentence.

Run as a module with the arguments LIBRARY and DATA, and with pipes as standard input and output. The library reads
files when a voice is chosen, but nothing can be opened in the sandbox. So a child chooses its voice first, is confined,
and only then speaks the caller's text. The process keeps nothing of one caller for another.

A request is one message. Its answer is some messages with only data, and a last one with `spoken`: true if the sentence
was spoken to its end. The data are samples of 16 bits at `RATE` or, put together, a JSON array of clauses.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import re
import sys
import unicodedata
from dataclasses import dataclass
from typing import NamedTuple

from asr_server.processes import messages, sandbox

RATE = 22_050  # Hz, of all voices of the library
MAX_REQUEST_BYTES = 64 * 1024
MAX_DATA_BYTES = 64 * 1024  # of one message
MAX_MESSAGE_BYTES = MAX_DATA_BYTES + 64
MAX_ANSWER_BYTES = 1024 * 1024  # phonemes of a sentence; of 400 digits that are spelled out, some 30 KiB
# speak_lib.h
_AUDIO_OUTPUT_SYNCHRONOUS, _POS_CHARACTER, _CHARS_UTF8, _IPA = 2, 1, 1, 2
_ENDINGS = frozenset(",.;:!?")
# Signs of other scripts that compatibility forms (NFKC) do not turn into one of `,.;:!?`.
_SIGNS = {
    "。": ".",
    "।": ".",
    "።": ".",
    "۔": ".",
    "…": ".",
    "、": ",",
    "،": ",",
    "؛": ";",
    "؟": "?",
    "—": ",",
    "–": ",",
}
_LONGEST_ABBREVIATION = 4
_BEHIND_ENDINGS = " \t\n\"'“”‘’«»()[]{}"
# A sentence takes 10 to 50 ms and no memory worth mentioning.
_MEMORY_BYTES = 64 * 2**20
_CPU_S = 10.0
# The breath of some voices is noise, which the library would seed with the time.
_SEED = 1

_SYNTH_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
_DISCARD = _SYNTH_CALLBACK(lambda samples, count, events: 0)


@dataclass(frozen=True, slots=True)
class SpeakRequest:
    """A text to speak, or to write in phonemes."""

    text: str
    voice: str  # the library's name: a language, or a language and a variant
    phonemes: bool = False  # write the text in phonemes instead of speaking it


class Clause(NamedTuple):
    """A part of a text in phonemes."""

    phonemes: str  # of the International Phonetic Alphabet
    ending: str  # the sign that ends it, or ""


def main() -> None:
    """Answer requests until the server closes the pipe."""
    sandbox.give_way()
    library = _load(*sys.argv[1:3])
    sandbox.freeze()
    _write(messages.packed({"loaded": True}))
    while message := messages.read(sys.stdin.buffer.read, MAX_REQUEST_BYTES):
        request = SpeakRequest(**message.content)
        child = sandbox.fork(functools.partial(_speak, library, request))
        _, status = os.waitpid(child, 0)
        _write(messages.packed({"spoken": os.waitstatus_to_exitcode(status) == 0}))


def _load(path: str, data: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    if library.espeak_Initialize(_AUDIO_OUTPUT_SYNCHRONOUS, 0, data.encode(), 0) <= 0:
        raise OSError("eSpeak NG does not accept its data")
    if hasattr(library, "espeak_ng_SetRandSeed"):  # not in old releases
        library.espeak_ng_SetRandSeed(ctypes.c_long(_SEED))
    # Languages without a word for a sign say the English word. Children cannot open the English dictionary, and without
    # it the library crashes. So it is read here, by speaking a sign in a language that has no word for the sign.
    library.espeak_SetVoiceByName(b"az")
    library.espeak_SetSynthCallback(_DISCARD)
    library.espeak_Synth(b"&", 2, 0, _POS_CHARACTER, 0, _CHARS_UTF8, None, None)
    return library


def _speak(library: ctypes.CDLL, request: SpeakRequest, parent_pid: int) -> None:
    """Write the samples or clauses of one sentence. Raises ValueError if it cannot be spoken to its end."""
    if library.espeak_SetVoiceByName(request.voice.encode()) != 0:
        raise ValueError("no such voice")
    callback = _SYNTH_CALLBACK(_written)
    library.espeak_SetSynthCallback(callback)
    sandbox.prepare((1,), parent_pid)
    sandbox.lock(_MEMORY_BYTES, _CPU_S)
    text = ctypes.create_string_buffer(request.text.encode())
    if request.phonemes:
        _send(json.dumps(_clauses(library, text)).encode())
    elif library.espeak_Synth(text, len(text), 0, _POS_CHARACTER, 0, _CHARS_UTF8, None, None) != 0:
        raise ValueError("the library failed")


def _clauses(library: ctypes.CDLL, text: ctypes.Array[ctypes.c_char]) -> list[Clause]:
    """Return each clause as phonemes, with its final sign. The library omits these signs, which set the intonation."""
    next_clause = library.espeak_TextToPhonemes
    next_clause.restype = ctypes.c_char_p
    begin, found = ctypes.addressof(text), []
    end = begin + len(text) - 1
    at = ctypes.c_void_p(begin)
    while at.value:
        clause_begin = at.value
        phonemes = next_clause(ctypes.byref(at), _CHARS_UTF8, _IPA) or b""
        spoken = text.raw[: (at.value or end) - begin].decode(errors="ignore")
        found.append(Clause(phonemes.decode(errors="ignore"), _ending(spoken, not at.value)))
        if at.value == clause_begin:  # no progress: the loop would never end
            break
    return found


def _ending(text: str, is_last: bool) -> str:
    """Return the sign at the end of the last clause of the text so far: one of `,.;:!?`, or "".

    The library has already read one character of the next clause. A dot between two clauses ends a sentence only after
    a long word: after a short one it belongs to an abbreviation such as "Mr.".
    """
    spoken = text.rstrip(_BEHIND_ENDINGS)
    if not is_last and not _sign(spoken):
        spoken = spoken[:-1].rstrip(_BEHIND_ENDINGS)
    sign = _sign(spoken)
    if sign == "." and not is_last and len(re.split(r"[\W_]", spoken.rstrip("."))[-1]) <= _LONGEST_ABBREVIATION:
        return ""
    return sign


def _sign(text: str) -> str:
    last = text[-1:]
    sign = _SIGNS.get(last) or unicodedata.normalize("NFKC", last)[-1:]
    return sign if sign in _ENDINGS else ""


def _written(samples: object, count: int, _: object) -> int:
    if samples and count > 0:
        _send(ctypes.string_at(samples, 2 * count))  # type: ignore[arg-type]
    return 0


def _send(data: bytes) -> None:
    for begin in range(0, len(data), MAX_DATA_BYTES):
        _write(messages.packed({}, data[begin : begin + MAX_DATA_BYTES]))


def _write(data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest) :]


if __name__ == "__main__":
    main()
