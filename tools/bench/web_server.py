"""What does Granian change beside uvicorn? Both servers run side by side on the fake engine and are asked in turn."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from E2Etest import recordings
from E2Etest.live.session import act, data, open_session, upto_flush
from E2Etest.process import ServerProcess, ready
from tools.bench.gateway import live, pairs, request_ms

ROUNDS = 100
CALLERS, REQUESTS = 8, 120
SESSIONS, SESSION_S, FRAME_S = 16, 6, 0.1


def measure() -> dict[str, object]:
    """Medians in milliseconds; requests a second; seconds of processor for a second of a live session."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        usual = {"MODEL_ID": "fake", "LOG_LEVEL": "INFO"}
        both = {
            name: stack.enter_context(ready(Path(folder) / name, **usual, USE_GRANIAN=str(name == "granian")))
            for name in ("uvicorn", "granian")
        }
        one = pairs(both["uvicorn"], both["granian"], request_ms, ROUNDS)
        message = live(both["uvicorn"], both["granian"])
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

    began_s, before_s = time.perf_counter(), _cpu_s(server.process.pid)
    with ThreadPoolExecutor(SESSIONS) as talkers:
        list(talkers.map(talk, range(SESSIONS)))
    return (_cpu_s(server.process.pid) - before_s) / (time.perf_counter() - began_s)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
