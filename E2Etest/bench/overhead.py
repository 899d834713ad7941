"""How much does the server add to the engine's own time? One span of speech over HTTP and in a bare engine, in turn."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from asr_server.audio.segmentation.config import SegmentationConfig
from asr_server.audio.segmentation.quietest import frame_power
from asr_server.audio.segmentation.spans import cut
from asr_server.audio.vad import SpeechProbability
from asr_server.core import settings
from asr_server.engine import capabilities, plan, registry
from asr_server.engine.protocol import Engine, Utterance
from asr_server.scheduling.ports import RowDone
from E2Etest import recordings
from E2Etest.process import ServerProcess, running

ROUNDS = 60
CLIP_S = 3


def measure() -> dict[str, object]:
    """Medians in milliseconds for one caller and a 3 s WAV."""
    pcm = np.resize(recordings.samples(), CLIP_S * 16_000)
    audio = recordings.wav(pcm)
    engine, utterance = _engine(), _utterance(pcm)
    with tempfile.TemporaryDirectory() as directory, running(Path(directory) / "log") as server:
        _round_trip_ms(server, audio), _engine_ms(engine, utterance)
        pairs = [(_engine_ms(engine, utterance), _round_trip_ms(server, audio)) for _ in range(ROUNDS)]
    alone, over_http = (statistics.median(times) for times in zip(*pairs, strict=True))
    return {
        "question": "HTTP round trip against the engine call alone, 3 s WAV, one caller, demo checkpoint",
        "rounds": ROUNDS,
        "engine_ms_p50": round(alone, 2),
        "http_ms_p50": round(over_http, 2),
        "added_ms_p50": round(statistics.median(b - a for a, b in pairs), 2),
        "target": "at most 10 ms or 5 %, the larger",
    }


def _engine() -> Engine:
    engine = registry.build(plan.resolve(settings.load(model_id="demo"), capabilities.probe()))
    engine.load()
    return engine


def _utterance(pcm: np.ndarray) -> Utterance:
    """The span that the server's engine will see: what lies between is the server's time."""
    samples = pcm.astype(np.float32) / 32768
    (span,) = cut(SpeechProbability().probabilities(samples), frame_power(samples), len(samples), SegmentationConfig())
    return Utterance(samples[span.start_samples : span.end_samples])


def _engine_ms(engine: Engine, utterance: Utterance) -> float:
    began = time.perf_counter()
    engine.admit(0, utterance)
    while not any(isinstance(outcome, RowDone) for outcome in engine.step()):
        pass
    return 1000 * (time.perf_counter() - began)


def _round_trip_ms(server: ServerProcess, audio: bytes) -> float:
    began = time.perf_counter()
    assert server.transcribe(audio).status_code == 200
    return 1000 * (time.perf_counter() - began)
