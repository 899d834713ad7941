"""One diariser of the benchmark `speakers`, in a process of its own: samples on stdin, turns as JSON on stdout.

Run as `python -m tools.bench.speakers_side embedded < samples` for the server's own, or with `wheel CADENCE` for that
of the package moonshine-voice, whose models the server's uses too. CADENCE is its option `diarization_analyze_cadence`:
the larger, the faster and the coarser. Samples are float32 at 16 kHz.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np

from asr_server.core.audio import SAMPLE_RATE
from asr_server.features.moonshine import package

Turns = list[tuple[str, float, float]]


def main(name: str, *options: str) -> None:
    """Turns (speaker, start, end) in seconds, wall and processor time, and the peak of the resident memory."""
    samples = np.frombuffer(sys.stdin.buffer.read(), np.float32)
    diarize = {"embedded": _embedded, "wheel": _wheel}[name](*options)
    began_s, processor_s = time.perf_counter(), time.process_time()
    turns = diarize(samples)
    figures = {
        "wall_s": time.perf_counter() - began_s,
        "processor_s": time.process_time() - processor_s,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "turns": turns,
    }
    print(json.dumps(figures))


def _embedded() -> Callable[[np.ndarray], Turns]:
    from asr_server.features.speakers.diarization import model_files
    from asr_server.features.speakers.diarization.recording import RecordingDiarizer
    from asr_server.features.speakers.diarization.turns import SpeakerCount, label

    models = model_files.load("embedded")

    def diarize(samples: np.ndarray) -> Turns:
        recording = RecordingDiarizer(models)
        for begin in range(0, len(samples), SAMPLE_RATE):
            recording.push(samples[begin : begin + SAMPLE_RATE])
        found = recording.finish(SpeakerCount())
        return [(label(turn.speaker), turn.start_ms / 1000, turn.end_ms / 1000) for turn in found.turns]

    return diarize


def _wheel(cadence: str) -> Callable[[np.ndarray], Turns]:
    """Modules of the package are imported without its `__init__`, which also wants what fetches other models."""
    folder = str(package.locate().encoder.parents[2])
    bare = ModuleType("moonshine_voice")
    bare.__path__ = [folder]
    sys.modules["moonshine_voice"] = bare
    from moonshine_voice.moonshine_api import ModelArch
    from moonshine_voice.transcriber import Transcriber

    transcriber = Transcriber(
        model_path=str(Path(folder) / "assets" / "tiny-en"),
        model_arch=ModelArch.TINY,
        options={
            "identify_speakers": "true",
            "skip_transcription": "true",
            "diarization_analyze_cadence": cadence,
        },
    )

    def diarize(samples: np.ndarray) -> Turns:
        found = transcriber.transcribe_without_streaming(samples.tolist(), SAMPLE_RATE)
        return [
            (str(span.speaker_index), span.start_time, span.start_time + span.duration)
            for line in found.lines
            for span in line.speaker_spans
        ]

    return diarize


if __name__ == "__main__":
    main(*sys.argv[1:])
