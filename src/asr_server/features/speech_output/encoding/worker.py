"""The process that encodes speech: any number of files, one request at a time.

Run as `python -m asr_server.features.speech_output.encoding.worker` with pipes as standard input and output.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import av
import numpy as np

from asr_server.core.audio import SPEECH_RATE
from asr_server.features.speech_output.encoding.formats import ChapterMark, EncodingOptions, SpeechFormat
from asr_server.features.speech_output.encoding.speech_file import SpeechFile
from asr_server.processes import messages, worker

# On top of the memory that the warm-up takes: the files, and their blocks on the way from one step to the next.
_MEMORY_BYTES = 1_024 * 2**20
_REQUEST_CPU_S = 30.0


def main() -> None:
    """Answer requests until the server closes the pipe."""
    worker.prepare()
    av.logging.set_level(None)
    _warm_up()
    worker.confine(_MEMORY_BYTES)
    worker.serve(sys.stdin.buffer, sys.stdout.buffer, answer, _REQUEST_CPU_S)
    os._exit(0)


def answer(content: dict[str, Any], data: bytes, files: dict[int, SpeechFile]) -> bytes:
    """Answer a request with the bytes of the file that are ready. A file that fails is forgotten."""
    number = content["stream"]
    try:
        match content["action"], files.get(number):
            case "start", None:
                files[number] = SpeechFile(_options(**content["options"]))
                return messages.packed({})
            case "push", SpeechFile() as file:
                samples = np.frombuffer(data, np.float32)
                return _ready(file, file.push(samples, ends_sentence=content["ends_sentence"]))
            case "finish", SpeechFile() as file:
                del files[number]
                return _ready(file, file.finish())
            case _:
                return messages.packed({"error": "unknown"})
    except BaseException:
        files.pop(number, None)
        raise


def _options(format: str, chapters: list[tuple[int, int, str]], **others: Any) -> EncodingOptions:
    marks = tuple(ChapterMark(*chapter) for chapter in chapters)
    return EncodingOptions(SpeechFormat(format), chapters=marks, **others)


def _ready(file: SpeechFile, encoded: bytes) -> bytes:
    return messages.packed({"samples": file.samples}, encoded)


def _warm_up() -> None:
    """Use all formats once, so that everything is imported before the process is confined."""
    noise = np.random.default_rng(0).normal(0, 0.1, SPEECH_RATE).astype(np.float32)
    for speech_format in SpeechFormat:
        file = SpeechFile(EncodingOptions(speech_format, speed=1.5))
        file.push(noise, ends_sentence=True)
        file.finish()


if __name__ == "__main__":
    main()
