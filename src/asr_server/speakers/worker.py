"""The process that tells speakers apart: one thread, any number of recordings, one request at a time.

Run as `python -m asr_server.speakers.worker SOURCE` with pipes as standard input and output. It ends when the server
closes its input or dies. It is confined like a decoder once its models are loaded: it can open, connect and start
nothing.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from typing import Any, BinaryIO

import numpy as np

from asr_server.audio import sandbox
from asr_server.core.audio import SAMPLE_RATE
from asr_server.speakers import model_files, wire
from asr_server.speakers.embedded_weights import WeightsError
from asr_server.speakers.live import LiveDiarizer
from asr_server.speakers.models import Samples
from asr_server.speakers.recording import RecordingDiarizer
from asr_server.speakers.turns import SpeakerCount
from asr_server.speakers.windows import Models, Piece

Diarizer = RecordingDiarizer | LiveDiarizer

# On top of what the loaded models take. Two hours of speech keep 5 MB until they end, and their end takes 55 MB for a
# second. A recording that gets no memory fails alone.
_MEMORY_BYTES = 512 * 2**20
# A block takes less than a second, the end of a recording of eight hours three.
_REQUEST_CPU_S = 120.0
_NO_LIMIT_S = 2.0**31  # the limit above begins anew with each request
_NICENESS = 5


def main() -> None:
    """Answer requests until the server closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which drains first
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)  # recognition first
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")  # short of memory, the kernel kills this process rather than the server
    try:
        models = model_files.load(sys.argv[1])
    except WeightsError as error:
        refuse(sys.stdin.buffer, sys.stdout.buffer, str(error))
        return
    _warm_up(models)
    gc.collect()
    sandbox.prepare((0, 1, 2), os.getppid())
    sandbox.lock(_MEMORY_BYTES, _NO_LIMIT_S)
    serve(sys.stdin.buffer, sys.stdout.buffer, models)
    os._exit(0)


def serve(requests: BinaryIO, answers: BinaryIO, models: Models) -> None:
    """Answer requests until there are no more."""
    recordings: dict[int, Diarizer] = {}
    while message := _read(requests):
        content, samples = message
        sandbox.limit_cpu_from_now(_REQUEST_CPU_S)
        request = wire.SpeakerRequest(**content)
        for dropped in request.dropped:
            recordings.pop(dropped, None)
        try:
            answer = _answer(request, samples, recordings, models)
        except Exception as error:  # it concerns one recording
            answer = wire.packed({"error": type(error).__name__})
        answers.write(answer)
        answers.flush()


def refuse(requests: BinaryIO, answers: BinaryIO, reason: str) -> None:
    """Answer the first request with the reason why none can be answered."""
    if _read(requests):
        answers.write(wire.packed({"unusable": reason}))
        answers.flush()


def _read(requests: BinaryIO) -> tuple[dict[str, Any], Samples] | None:
    header = requests.read(wire.HEADER.size)
    if not header:
        return None
    text_bytes, number_bytes = wire.sizes(header)
    return wire.unpacked(requests.read(text_bytes), requests.read(number_bytes))


def _answer(request: wire.SpeakerRequest, samples: Samples, recordings: dict[int, Diarizer], models: Models) -> bytes:
    match request.action, recordings.get(request.analysis):
        case "start", _:
            recordings[request.analysis] = LiveDiarizer(models) if request.live else RecordingDiarizer(models)
        case "push", LiveDiarizer() as session:
            changed = session.push(samples)
            return wire.turns_message(changed, session.settled_ms, session.take_voice_prints())
        case "push", RecordingDiarizer() as recording:
            recording.push(samples)
        case "finish", RecordingDiarizer() as recording:
            return wire.diarization_message(recording.finish(SpeakerCount(request.at_least, request.at_most)))
        case _:
            return wire.packed({"error": "unknown"})
    return wire.packed({})


def _warm_up(models: Models) -> None:
    """What is imported at the first use is then there before the process is confined."""
    noise = np.random.default_rng(0).normal(0, 0.1, 11 * SAMPLE_RATE).astype(np.float32)
    voices = [models.embedding(noise[: (second + 1) * SAMPLE_RATE]) for second in range(4)]
    second = SAMPLE_RATE
    pieces = [Piece(n * second, (n + 2) * second, (n, 0), voice, 2.0) for n, voice in enumerate(voices)]
    RecordingDiarizer(models, pieces).finish(SpeakerCount(2, 2))
    diarizer = RecordingDiarizer(models)
    diarizer.push(noise)
    diarizer.finish(SpeakerCount())


if __name__ == "__main__":
    main()
