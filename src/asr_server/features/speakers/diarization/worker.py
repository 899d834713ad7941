"""The process that distinguishes speakers: any number of recordings, one request at a time.

Run as `python -m asr_server.features.speakers.diarization.worker SOURCE` with pipes as standard input and output.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any, BinaryIO

import numpy as np

from asr_server.core.audio import SAMPLE_RATE
from asr_server.features.speakers.diarization import model_files, wire
from asr_server.features.speakers.diarization.embedded_weights import WeightsError
from asr_server.features.speakers.diarization.live import LiveDiarizer
from asr_server.features.speakers.diarization.recording import RecordingDiarizer
from asr_server.features.speakers.diarization.turns import SpeakerCount
from asr_server.features.speakers.diarization.windows import Piece, SpeakerModels
from asr_server.processes import messages, worker

Diarizer = RecordingDiarizer | LiveDiarizer

# In addition to the memory of the loaded models. Two hours of speech keep 5 MB until they end, and then take 55 MB for
# a second. If there is no memory for a recording, only that one fails.
_MEMORY_BYTES = 512 * 2**20
# A block takes less than a second, and the end of an eight-hour recording takes three.
_REQUEST_CPU_S = 120.0


def main() -> None:
    """Answer requests until the server closes the pipe."""
    worker.prepare()
    try:
        models = model_files.load(sys.argv[1])
    except WeightsError as error:
        refuse(sys.stdin.buffer, sys.stdout.buffer, str(error))
        return
    _warm_up(models)
    worker.confine(_MEMORY_BYTES)
    serve(sys.stdin.buffer, sys.stdout.buffer, models)
    os._exit(0)


def serve(requests: BinaryIO, answers: BinaryIO, models: SpeakerModels) -> None:
    worker.serve(requests, answers, partial(_answer, models), _REQUEST_CPU_S)


def refuse(requests: BinaryIO, answers: BinaryIO, reason: str) -> None:
    """Answer the first request with the reason why no request can be answered."""
    if messages.read(requests.read):
        answers.write(messages.packed({"unusable": reason}))
        answers.flush()


def _answer(models: SpeakerModels, content: dict[str, Any], data: bytes, recordings: dict[int, Diarizer]) -> bytes:
    stream, samples = content["stream"], np.frombuffer(data, np.float32)
    match content["action"], recordings.get(stream):
        case "start", _:
            recordings[stream] = LiveDiarizer(models) if content["live"] else RecordingDiarizer(models)
        case "push", LiveDiarizer() as session:
            changed = session.push(samples)
            return wire.answer(changed, session.take_voice_prints(), session.settled_ms)
        case "push", RecordingDiarizer() as recording:
            recording.push(samples)
        case "finish", RecordingDiarizer() as recording:
            found = recording.finish(SpeakerCount(content["at_least"], content["at_most"]))
            return wire.answer(found.turns, dict(enumerate(found.voice_prints)))
        case _:
            return messages.packed({"error": "unknown"})
    return messages.packed({})


def _warm_up(models: SpeakerModels) -> None:
    """Use the models once, so that everything is imported before the process is confined."""
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
