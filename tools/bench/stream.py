"""How soon does a streamed recording of ten minutes say its first word, and what does that wait for?"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from E2Etest.drive import recordings
from E2Etest.drive.process import ServerProcess, running

RATE = 16_000
ROUNDS = 5


def measure(seconds: int = 600) -> dict[str, object]:
    """Medians in seconds, one caller at a time, the demonstration model over HTTP.

    The first span's own time is that of a recording that is nothing but this span, without streaming.
    """
    speech = np.resize(recordings.samples(), seconds * RATE)
    long = recordings.wav(speech)
    with tempfile.TemporaryDirectory() as folder, running(Path(folder) / "log", IDLE_TIMEOUT="0") as server:
        spans = server.transcribe(long, response_format="verbose_json").json()["segments"]
        one = recordings.wav(speech[: round(spans[1]["start"] * RATE)])
        rounds = [(*_streamed_s(server, long), _plain_s(server, long), _plain_s(server, one)) for _ in range(ROUNDS)]
    first, last, plain, span = (statistics.median(times) for times in zip(*rounds, strict=True))
    return {
        "question": f"{seconds} s of speech without long pauses, streamed, demo checkpoint, {len(spans)} spans",
        "rounds": ROUNDS,
        "first_delta_s_p50": round(first, 3),
        "whole_stream_s_p50": round(last, 3),
        "whole_plain_s_p50": round(plain, 3),
        "first_span_alone_s_p50": round(span, 3),
        "first_delta_of_whole": round(first / last, 3),
        "first_delta_of_span": round(first / span, 2),
        "target": "first delta within 0.15 of the whole, and within 1.1 of the first span's own time",
    }


def _streamed_s(server: ServerProcess, audio: bytes) -> tuple[float, float]:
    """Seconds to the first delta, and to the end."""
    began, first = time.perf_counter(), 0.0
    data = {"model": "demo", "stream": "true"}
    with server.client.stream(
        "POST", "/v1/audio/transcriptions", files={"file": ("a.wav", audio)}, data=data
    ) as answer:
        for line in answer.iter_lines():
            if not first and "transcript.text.delta" in line:
                first = time.perf_counter() - began
    assert first, "nothing was said"
    return first, time.perf_counter() - began


def _plain_s(server: ServerProcess, audio: bytes) -> float:
    began = time.perf_counter()
    assert server.transcribe(audio).status_code == 200
    return time.perf_counter() - began
