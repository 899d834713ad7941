"""What does the gateway add to a request and to a live message, and what does it leave in memory when nobody speaks?

Both servers run side by side and are asked in turn, so a busy machine slows both alike.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import numpy as np

from E2Etest import recordings
from E2Etest.live.session import TIMEOUT_S, act, data, open_session
from E2Etest.process import ServerProcess, running

Asked = TypeVar("Asked")

ROUNDS = 200
LIVE_ROUNDS = 200
CLIP_S = 3


def measure() -> dict[str, object]:
    """Medians in milliseconds and MiB, seconds for the first request after idling."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        usual = {"PRELOAD": "true", "IDLE_TIMEOUT": "0", "LOG_LEVEL": "INFO"}
        plain = stack.enter_context(running(Path(folder) / "plain", **usual))
        through = stack.enter_context(running(Path(folder) / "through", **usual, GATEWAY_MODE="true"))
        for server in (plain, through):
            server.wait_for(lambda health: health["model_loaded"], timeout_s=180)
        request = pairs(plain, through, request_ms, ROUNDS)
        empty = pairs(plain, through, unknown_ms, ROUNDS)
        refused = pairs(plain, through, refused_ms, ROUNDS)
        message = live(plain, through)
    return {
        "question": "The gateway against the same server without it, demo checkpoint",
        "request_3_s_wav": request,
        "request_without_work": empty,
        "upload_that_is_refused": refused,
        "live_message": message,
        "idle": _idle(),
        "target": "3 ms at p50 to a request, 5 ms at p50 to a live message; under 80 MB; load time + 2 s",
    }


def pairs(plain: Asked, through: Asked, ask: Callable[[Asked], float], rounds: int) -> dict[str, float]:
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


_AUDIO = recordings.wav(np.resize(recordings.samples(), CLIP_S * 16_000))


def request_ms(server: ServerProcess) -> float:
    """A recording and its words."""
    began = time.perf_counter()
    assert server.transcribe(_AUDIO).status_code == 200
    return 1000 * (time.perf_counter() - began)


def refused_ms(server: ServerProcess) -> float:
    """Return the time of an upload that is refused after it was read: a request without the variance of the engine."""
    began = time.perf_counter()
    assert server.transcribe(_AUDIO, model="nobody").status_code == 404
    return 1000 * (time.perf_counter() - began)


def unknown_ms(server: ServerProcess) -> float:
    """The shortest request of all."""
    began = time.perf_counter()
    assert server.client.get("/v1/nothing").status_code == 404
    return 1000 * (time.perf_counter() - began)


def live(plain: ServerProcess, through: ServerProcess, rounds: int = LIVE_ROUNDS) -> dict[str, float]:
    """An action that takes its way through the session and back, beside audio that is sent meanwhile."""
    quiet = data(np.zeros(512, np.int16))
    with open_session(plain) as one, open_session(through) as other:

        def ask(socket) -> float:
            socket.send(quiet)
            began = time.perf_counter()
            act(socket, "config", hotwords=["lamp"])
            assert json.loads(socket.recv(timeout=TIMEOUT_S))["status"] == "configured"
            return 1000 * (time.perf_counter() - began)

        return pairs(one, other, ask, rounds)


def _idle() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with running(log, GATEWAY_MODE="true", IDLE_TIMEOUT="1", LOG_JSON="true") as server:
            fresh = server.resident_mb()
            assert server.transcribe(_AUDIO).status_code == 200
            used = server.resident_mb()
            server.wait_for(lambda health: health["worker"] == "stopped", timeout_s=60)
            idle = server.resident_mb()
            began = time.perf_counter()
            assert server.transcribe(_AUDIO).status_code == 200
            first_s = time.perf_counter() - began
            loads = [row for row in map(json.loads, server.log().splitlines()) if row.get("state") == "loaded"]
    return {
        "fresh_mb": round(fresh, 1),
        "loaded_mb": round(used, 1),
        "after_idle_unload_mb": round(idle, 1),
        "first_request_s": round(first_s, 2),
        "of_that_model_load_s": loads[-1]["took_s"],
        "beyond_load_s": round(first_s - loads[-1]["took_s"], 2),
    }
