"""What does Granian change beside uvicorn? Both servers run side by side on the fake engine and are asked in turn."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import numpy as np

from E2Etest.drive import recordings
from E2Etest.drive.process import ServerProcess, ready
from E2Etest.drive.procfs import cpu_s
from E2Etest.drive.session import TIMEOUT_S, act, data, open_session, upto_flush

ROUNDS, LIVE_ROUNDS = 100, 200
CLIP_S = 3
CALLERS, REQUESTS = 8, 120
SESSIONS, SESSION_S, FRAME_S = 16, 6, 0.1

_AUDIO = recordings.wav(np.resize(recordings.samples(), CLIP_S * 16_000))

Asked = TypeVar("Asked")


def measure() -> dict[str, object]:
    """Medians in milliseconds; requests a second; seconds of processor for a second of a live session."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        usual = {"MODEL_ID": "fake", "LOG_LEVEL": "INFO"}
        both = {
            name: stack.enter_context(ready(Path(folder) / name, **usual, USE_GRANIAN=str(name == "granian")))
            for name in ("uvicorn", "granian")
        }
        one = _pairs(both["uvicorn"], both["granian"], _request_ms, ROUNDS)
        message = _live(both["uvicorn"], both["granian"])
        rates: dict[str, list[float]] = {name: [] for name in both}
        sessions: dict[str, list[float]] = {name: [] for name in both}
        for turn in range(4):
            for name in sorted(both, reverse=turn % 2 == 1):
                rates[name].append(_requests_a_second(both[name]))
                sessions[name].append(_live_cpu(both[name]))
        resident = {name: round(server.own_mb(), 1) for name, server in both.items()}
    return {
        "question": "Granian ('through') against uvicorn ('plain'), fake engine",
        "request_3_s_wav": one,
        "live_message": message,
        f"requests_a_second_of_{CALLERS}_callers": _medians(rates, 1),
        f"cpu_share_of_{SESSIONS}_live_sessions": _medians(sessions, 3),
        "resident_mb": resident,
    }


def _pairs(plain: Asked, through: Asked, ask: Callable[[Asked], float], rounds: int) -> dict[str, float]:
    """Return the figures of `ask` for both: servers, or their sockets.

    Both are asked in turn, in alternating order; differences are those of neighbours in time.
    """
    asked = []
    for number in range(rounds + 10):
        if number % 2:
            asked.append((ask(plain), ask(through)))
        else:
            asked.append((ask(through), ask(plain))[::-1])
    return _figures(asked[10:])


def _figures(pairs: list[tuple[float, float]]) -> dict[str, float]:
    plain, through = zip(*pairs, strict=True)
    return {
        "plain_ms_p50": round(statistics.median(plain), 2),
        "through_ms_p50": round(statistics.median(through), 2),
        "added_ms_p50": round(statistics.median(b - a for a, b in pairs), 2),
        "added_ms_p95": round(statistics.quantiles(through, n=20)[-1] - statistics.quantiles(plain, n=20)[-1], 2),
        "added_ms_of_minima": round(min(through) - min(plain), 2),
    }


def _request_ms(server: ServerProcess) -> float:
    """A recording and its words."""
    began = time.perf_counter()
    assert server.transcribe(_AUDIO).status_code == 200
    return 1000 * (time.perf_counter() - began)


def _live(plain: ServerProcess, through: ServerProcess, rounds: int = LIVE_ROUNDS) -> dict[str, float]:
    """An action that takes its way through the session and back, beside audio that is sent meanwhile."""
    quiet = data(np.zeros(512, np.int16))
    with open_session(plain) as one, open_session(through) as other:

        def ask(socket) -> float:
            socket.send(quiet)
            began = time.perf_counter()
            act(socket, "config", hotwords=["lamp"])
            assert json.loads(socket.recv(timeout=TIMEOUT_S))["status"] == "configured"
            return 1000 * (time.perf_counter() - began)

        return _pairs(one, other, ask, rounds)


def _medians(found: dict[str, list[float]], digits: int) -> dict[str, list[float] | float]:
    return {name: round(statistics.median(values), digits) for name, values in found.items()} | {
        f"{name}_all": [round(value, digits) for value in values] for name, values in found.items()
    }


def _requests_a_second(server: ServerProcess) -> float:
    audio = recordings.sample()[0]
    began_s = time.perf_counter()
    with ThreadPoolExecutor(CALLERS) as callers:
        statuses = list(callers.map(lambda _: server.transcribe(audio, model="").status_code, range(REQUESTS)))
    assert set(statuses) == {200}
    return REQUESTS / (time.perf_counter() - began_s)


def _live_cpu(server: ServerProcess) -> float:
    """Processor time of the server for each second of time, while sessions send in frames as clients do."""
    speech = np.tile(recordings.samples(), 4)[: SESSION_S * 16_000]
    frames = [data(frame) for frame in np.array_split(speech, int(SESSION_S / FRAME_S))]

    def talk(_: int) -> None:
        with open_session(server) as socket:
            for number, frame in enumerate(frames):
                socket.send(frame)
                time.sleep(max(0.0, began_s + (number + 1) * FRAME_S - time.perf_counter()))
            act(socket, "flush")
            upto_flush(socket)

    began_s, before_s = time.perf_counter(), cpu_s(server.process.pid)
    with ThreadPoolExecutor(SESSIONS) as talkers:
        list(talkers.map(talk, range(SESSIONS)))
    return (cpu_s(server.process.pid) - before_s) / (time.perf_counter() - began_s)
