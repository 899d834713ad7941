"""How much does the server add to the engine's own time, and how much did an older commit of it?

One span of speech over HTTP to both and in a bare engine, in turn. Beside the difference to the bare engine, which has
the noise of two processes, stands what of a request was not inference, by the server's own clocks. The client is a
socket that sends bytes which were made before: a client's own work is none of the server's.
"""

from __future__ import annotations

import os
import re
import socket
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from asr_server import feature_list
from asr_server.audio.segmentation import SegmentationConfig, SpanCutter, SpeechProbability, frame_power
from asr_server.core import settings
from asr_server.engine import capabilities, core
from asr_server.engine.protocol import Engine, Utterance
from asr_server.schedule.model import RowDone
from E2Etest.drive import recordings
from E2Etest.drive.process import ready
from tools.bench.engine_ab import OLD_REVISION, ROOT, old_source

ROUNDS = 60
CLIP_S = 3


def measure() -> dict[str, object]:
    """Milliseconds for one caller and a 3 s WAV: medians, and the least of what is no inference."""
    pcm = np.resize(recordings.samples(), CLIP_S * 16_000)
    audio, revision = recordings.wav(pcm), os.environ.get("BENCH_OLD_REVISION", OLD_REVISION)
    engine, utterance = _engine(), _utterance(pcm)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        sources = {"old": stack.enter_context(old_source(revision)), "new": ROOT / "src"}
        servers = {
            name: stack.enter_context(ready(Path(folder) / f"{name}.log", PYTHONPATH=str(source), LOG_LEVEL="INFO"))
            for name, source in sources.items()
        }
        peers = {
            name: stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            for name, server in servers.items()
        }
        request = _request(audio)
        rounds = [
            (_engine_ms(engine, utterance), {name: _round_trip_ms(peer, request) for name, peer in peers.items()})
            for _ in range(ROUNDS + 5)
        ][5:]
    return {
        "question": f"HTTP round trip against the engine call alone, 3 s WAV, demo checkpoint, against {revision}",
        "rounds": ROUNDS,
        "engine_ms_p50": round(statistics.median(alone for alone, _ in rounds), 2),
        **{name: _figures([(alone, *trips[name]) for alone, trips in rounds]) for name in servers},
        "target": "not_inference_ms_p50 at most 5 ms",
    }


def _figures(trips: list[tuple[float, float, float]]) -> dict[str, float]:
    """Return the figures of the engine alone, of the round trip and of inference."""
    beside = [whole - inference for _, whole, inference in trips]
    return {
        "http_ms_p50": round(statistics.median(whole for _, whole, _ in trips), 2),
        "added_ms_p50": round(statistics.median(whole - alone for alone, whole, _ in trips), 2),
        "not_inference_ms_p50": round(statistics.median(beside), 2),
        "not_inference_ms_least": round(min(beside), 2),
    }


def _engine() -> Engine:
    engine = core.build_engine(feature_list.resolve(settings.load(model_id="demo"), capabilities.probe()))
    engine.load()
    return engine


def _utterance(pcm: np.ndarray) -> Utterance:
    """The span that the server's engine will see: what lies between is the server's time."""
    samples = pcm.astype(np.float32) / 32768
    cutter = SpanCutter(SegmentationConfig())
    cutter.push(SpeechProbability().push(samples), frame_power(samples))
    (span,) = cutter.finish(len(samples))
    return Utterance(samples[span.start_samples : span.end_samples])


def _engine_ms(engine: Engine, utterance: Utterance) -> float:
    began = time.perf_counter()
    engine.admit(0, utterance)
    while not any(isinstance(outcome, RowDone) for outcome in engine.step()):
        pass
    return 1000 * (time.perf_counter() - began)


def _request(audio: bytes) -> bytes:
    part = b'--part\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
    body = part % (b"model", b"whisper-1") + part % (b'file"; filename="audio.wav', audio) + b"--part--\r\n"
    head = b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n" % len(body)
    return head + b"Content-Type: multipart/form-data; boundary=part\r\n\r\n" + body


def _round_trip_ms(peer: socket.socket, request: bytes) -> tuple[float, float]:
    """The whole, and of it the inference."""
    began, answer = time.perf_counter(), b""
    peer.sendall(request)
    while not answer.endswith(b"}"):
        answer += peer.recv(65_536)
    took_ms = 1000 * (time.perf_counter() - began)
    assert answer.startswith(b"HTTP/1.1 200"), answer
    inference = re.search(rb"infer;dur=([\d.]+)", answer)
    assert inference, answer
    return took_ms, float(inference[1])
