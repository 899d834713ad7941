"""How soon does speech begin, what do many callers and long texts cost, and what does speaking cost live recognition?

eSpeak NG, or with `voices` the packaged voice of Piper, over HTTP on loopback. The partial results of a live session,
with the English model, are measured alone and beside callers who have texts spoken all the time, in turns.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from websockets.sync.client import ClientConnection as Connection

from asr_server.core.audio import SAMPLE_RATE, SPEECH_RATE
from asr_server.features.moonshine import package
from E2Etest.drive import recordings
from E2Etest.drive.process import ServerProcess, ready
from E2Etest.drive.session import act, data, open_session, pcm_of, receive
from tools.bench.engines import percentiles

FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")
SENTENCES = (Path(__file__).parents[2] / "E2Etest" / "spoken_sentences.txt").read_text(encoding="utf-8").splitlines()
TEXTS, CALLERS, BESIDE, ROUNDS = 40, 100, 4, 3
LONG_CHARS = 10_000
LIVE_S = 20.0
_URL = "/v1/audio/speech"


def measure_voices() -> dict[str, object]:
    """Return the same of a voice of Piper. Takes eight minutes on two cores."""
    return measure("piper")


def measure(engine: str = "espeak") -> dict[str, object]:
    """Times in ms, memory in MiB of the process and its children. Takes five minutes on two cores."""
    settings = {"MODEL_ID": package.MODEL_ID, "SPEECH": engine, "LOG_LEVEL": "WARNING"}
    with tempfile.TemporaryDirectory() as folder, ready(Path(folder) / "log", **settings) as server:
        silent_mb = server.resident_mb()
        _spoken(server, "Warm.")
        return {
            "engine": engine,
            "memory_of_loading_mb": round(server.resident_mb() - silent_mb, 1),
            "question": "Speech: first audio, many callers, a long text, live sessions",
            "load_at_start": os.getloadavg()[0],
            "first_audio_ms": _first_audio_ms(server),
            "callers": _callers(server),
            "long_text": _long_text(server),
            "live_partials": _live(server),
            "load_at_end": os.getloadavg()[0],
            "target": "first audio p50 60 ms; no error; 300 MB; live p95 within 20 %",
        }


def _spoken(server: ServerProcess, text: str, response_format: str = "mp3", **fields: object) -> tuple[float, bytes]:
    """Milliseconds to the first byte of the body, and the body."""
    began = time.perf_counter()
    body = {"input": text, "response_format": response_format, **fields}
    with server.client.stream("POST", _URL, json=body) as answer:
        assert answer.status_code == 200, answer.read()
        parts, first_ms = [], 0.0
        for part in answer.iter_raw():
            first_ms = first_ms or 1000 * (time.perf_counter() - began)
            parts.append(part)
    return first_ms, b"".join(parts)


def _first_audio_ms(server: ServerProcess) -> dict[str, object]:
    """One caller, a text once."""
    return {
        response_format: percentiles(
            [[_spoken(server, text, response_format, seed=at)[0] for text in SENTENCES[:TEXTS]]]
        )
        for at, response_format in enumerate(("pcm", "mp3"))
    }


def _callers(server: ServerProcess) -> dict[str, object]:
    """All at the same moment, each with a text and a format; a refusal is an error here."""

    def call(number: int) -> tuple[float, float]:
        began = time.perf_counter()
        text = f"{SENTENCES[number]} {SENTENCES[number + CALLERS]}"
        first_ms, body = _spoken(server, text, FORMATS[number % len(FORMATS)])
        assert len(body) > 1000
        return first_ms, 1000 * (time.perf_counter() - began)

    with ThreadPoolExecutor(CALLERS) as pool:
        times = list(pool.map(call, range(CALLERS)))
    first_ms, whole_ms = (list(column) for column in zip(*times, strict=True))
    return {"callers": CALLERS, "first_audio_ms": percentiles([first_ms]), "whole_ms": percentiles([whole_ms])}


def _long_text(server: ServerProcess) -> dict[str, float]:
    """Its greatest memory beyond that before it, and seconds of speech in a second."""
    text = (" ".join(SENTENCES) + " ") * 2
    before_mb, most_mb, done = server.resident_mb(), [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            most_mb[0] = max(most_mb[0], server.resident_mb())

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    _, samples = _spoken(server, text[:LONG_CHARS].rsplit(" ", 1)[0], "pcm")
    took_s = time.perf_counter() - began
    done.set()
    watcher.join()
    spoken_s = len(samples) / 2 / SPEECH_RATE
    return {
        "characters": LONG_CHARS,
        "spoken_s": round(spoken_s, 1),
        "took_s": round(took_s, 2),
        "times_real_time": round(spoken_s / took_s, 1),
        "memory_before_mb": round(before_mb, 1),
        "memory_growth_mb": round(most_mb[0] - before_mb, 1),
    }


def _live(server: ServerProcess) -> dict[str, object]:
    """Alone and beside, in turns."""
    alone, beside = [], []
    for _ in range(ROUNDS):
        alone.append(_partials_ms(server))
        with _always_speaking(server):
            beside.append(_partials_ms(server))
    p95 = [statistics.median(np.percentile(times, 95) for times in rounds) for rounds in (alone, beside)]
    return {
        "callers_beside": BESIDE,
        "alone_ms": percentiles(alone),
        "beside_ms": percentiles(beside),
        "p95_median_of_rounds_ms": [round(float(each), 1) for each in p95],
        "ratio_p95": round(float(p95[1] / p95[0]), 2),
    }


def _partials_ms(server: ServerProcess) -> list[float]:
    """Return the lags of partials of one session at the speed of speech, from the arrival of the audio they show."""
    (clip,) = recordings.real_clips("librivox_0880")
    pcm = np.resize(pcm_of(clip.path), int(LIVE_S * SAMPLE_RATE))
    found = []
    with open_session(server, language="en") as socket:
        sender = threading.Thread(target=_send, args=(socket, pcm))
        sender.start()
        message: dict[str, Any] = {}
        while message.get("ending") != "flush":
            message = receive(socket)
            if message.get("is_final") is False:
                found.append(message["lag_ms"])
        sender.join()
    return found


def _send(socket: Connection, pcm: np.ndarray) -> None:
    began_s, chunk = time.monotonic(), SAMPLE_RATE // 10
    for at in range(0, len(pcm), chunk):
        time.sleep(max(0.0, began_s + at / SAMPLE_RATE - time.monotonic()))
        socket.send(data(pcm[at : at + chunk]))
    act(socket, "flush")


@contextmanager
def _always_speaking(server: ServerProcess) -> Iterator[None]:
    """Callers with one text after the other."""
    stopped = threading.Event()

    def call(number: int) -> None:
        seed = number
        while not stopped.is_set():
            seed += BESIDE
            _spoken(server, " ".join(SENTENCES[seed % 150 : seed % 150 + 5]), pause_ms=seed % 2000)

    with ThreadPoolExecutor(BESIDE) as pool:
        work = [pool.submit(call, number) for number in range(BESIDE)]
        try:
            yield
        finally:
            stopped.set()
        for each in work:
            each.result()
