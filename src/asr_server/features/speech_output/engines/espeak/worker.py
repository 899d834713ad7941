"""The process of eSpeak NG: loads the library once, then forks one confined child for each sentence.

Run as a module with the arguments LIBRARY and DATA, and with pipes as standard input and output. The library reads
files when a voice is chosen, and nothing can be opened in the sandbox: so a child chooses its voice first, is confined,
and only then speaks the caller's text. It keeps nothing of one caller for another.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import re
import signal
import sys
import unicodedata
from typing import NoReturn

from asr_server.features.speech_output.engines.espeak.wire import (
    FAILED,
    FRAME_HEADER,
    MAX_FRAME_BYTES,
    MAX_REQUEST_BYTES,
    OUTCOME,
    REQUEST_HEADER,
    SPOKEN,
    Clause,
    SpeakRequest,
)
from asr_server.processes import sandbox

# speak_lib.h
_AUDIO_OUTPUT_SYNCHRONOUS, _POS_CHARACTER, _CHARS_UTF8, _IPA = 2, 1, 1, 2
_ENDINGS = frozenset(",.;:!?")
# Signs of other scripts that compatibility forms do not make one of `,.;:!?`.
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
_STARTED = b"1"
# The breath of some voices is noise, which the library seeds with the time.
_SEED = 1

_SYNTH_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
_DISCARD = _SYNTH_CALLBACK(lambda samples, count, events: 0)


def main() -> None:
    """Answer requests until the server closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which drains first
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")  # short of memory, the kernel kills this process rather than the server
    library = _load(*sys.argv[1:3])
    gc.freeze()  # a collection in a child would touch, and so copy, the pages that it shares with this process
    os.write(1, _STARTED)
    while header := _read(REQUEST_HEADER.size):
        (size,) = REQUEST_HEADER.unpack(header)
        if size > MAX_REQUEST_BYTES:
            return
        body, parent = _read(size), os.getpid()
        child = os.fork()
        if child == 0:
            _speak(library, body, parent)
        _, status = os.waitpid(child, 0)
        outcome = SPOKEN if os.waitstatus_to_exitcode(status) == 0 else FAILED
        _write(FRAME_HEADER.pack(0) + OUTCOME.pack(outcome))


def _load(path: str, data: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    if library.espeak_Initialize(_AUDIO_OUTPUT_SYNCHRONOUS, 0, data.encode(), 0) <= 0:
        raise OSError("eSpeak NG does not accept its data")
    if hasattr(library, "espeak_ng_SetRandSeed"):  # not in old releases
        library.espeak_ng_SetRandSeed(ctypes.c_long(_SEED))
    # Languages without a word for a sign say the English one. Children cannot open the English dictionary, without
    # which the library crashes: so it is read here, by speaking a sign in a language that has no word for it.
    library.espeak_SetVoiceByName(b"az")
    library.espeak_SetSynthCallback(_DISCARD)
    library.espeak_Synth(b"&", 2, 0, _POS_CHARACTER, 0, _CHARS_UTF8, None, None)
    return library


def _speak(library: ctypes.CDLL, body: bytes, parent: int) -> NoReturn:
    """Write the samples of one sentence, and exit: 0 if it was spoken to its end."""
    code = 1
    try:
        request = SpeakRequest.from_bytes(body)
        chosen = library.espeak_SetVoiceByName(request.voice.encode())
        callback = _SYNTH_CALLBACK(_written)
        library.espeak_SetSynthCallback(callback)
        sandbox.prepare((1,), parent)
        sandbox.lock(_MEMORY_BYTES, _CPU_S)
        text = ctypes.create_string_buffer(request.text.encode())
        if chosen == 0 and request.phonemes:
            _send(json.dumps(_clauses(library, text)).encode())
            code = 0
        elif chosen == 0:
            code = library.espeak_Synth(text, len(text), 0, _POS_CHARACTER, 0, _CHARS_UTF8, None, None)
    finally:
        os._exit(int(code != 0))  # skips the clean-up of the interpreter, which belongs to the parent


def _clauses(library: ctypes.CDLL, text: ctypes.Array[ctypes.c_char]) -> list[Clause]:
    """Return the phonemes of each clause. The library leaves out the signs between them, which say how to intone it."""
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
        if at.value == clause_begin:  # it would never end
            break
    return found


def _ending(text: str, is_last: bool) -> str:
    """Return the sign at the end of the last clause of the text so far: one of `,.;:!?`, or "".

    The library has read one character of the next clause. A dot between two clauses ends a sentence after a long word
    only: after a short one it belongs to an abbreviation such as "Mr.".
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
    for begin in range(0, len(data), MAX_FRAME_BYTES):
        piece = data[begin : begin + MAX_FRAME_BYTES]
        _write(FRAME_HEADER.pack(len(piece)) + piece)


def _read(size: int) -> bytes:
    """Read that many bytes, or fewer at the end of the requests."""
    parts = []
    while size and (part := os.read(0, size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _write(data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest) :]


if __name__ == "__main__":
    main()
