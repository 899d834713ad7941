"""What does a live session cost beside the engine: processor time, memory, sockets; and a recording, and the gateway?

On the fake engine, which takes almost no time. Processor time is that of the kernel's account, of the thread that runs
the event loop, of the whole process, and of this one, which plays the clients.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from asr_server.core.audio import SAMPLE_RATE
from asr_server_sizing.simulation import Speaker, Trace, Upload
from E2Etest import recordings
from E2Etest.process import ServerProcess, free_port, ready
from tools.bench import streams

SESSIONS, SECONDS, UPLOADS, UPLOAD_S = 40, 15.0, 40, 30.0
# All sessions begin within this time.
BEGIN_S = 2.0
_TICKS = os.sysconf("SC_CLK_TCK")
_PROXY = """
defaults
    mode http
    timeout connect 5s
    timeout client 330s
    timeout server 330s
    timeout tunnel 1h
frontend asr
    bind 127.0.0.1:{port}
    default_backend asr
backend asr
    server asr 127.0.0.1:{server}
"""


def measure(sessions: int = SESSIONS, seconds: float = SECONDS, *, gateway: bool = True) -> dict[str, object]:
    """Processor seconds for each second of a session or of a recording's audio, and MiB and sockets of a session."""
    silence = np.zeros(int(seconds * SAMPLE_RATE), np.int16)
    speech = np.resize(recordings.samples(), len(silence))
    voiced = sum(end - begin for begin, end in streams.regions(speech)) / seconds
    with tempfile.TemporaryDirectory() as folder:
        settings = {"MODEL_ID": "fake", "MAX_LIVE_SESSIONS": "10000", "LOG_LEVEL": "INFO"}
        with ready(Path(folder) / "log", **settings) as server:
            _sessions(server, 2, speech[: 4 * SAMPLE_RATE])
            idle = _sessions(server, sessions, silence)
            speaking = _sessions(server, sessions, speech)
            files = _files(server)
            proxy = _proxy(server, Path(folder), sessions, speech) if gateway else {}
        relayed = {"gateway_speaking": _gateway(Path(folder), settings, sessions, speech), **proxy} if gateway else {}
    return {
        "question": f"{sessions} live sessions in silence and in speech ({voiced:.0%} of it voiced) beside the engine",
        "voiced": round(voiced, 3),
        "silent": idle,
        "speaking": speaking,
        "recordings": files,
        **relayed,
    }


def _gateway(folder: Path, settings: dict[str, str], sessions: int, speech: np.ndarray) -> dict[str, float]:
    """Return the costs of the gateway's own process."""
    with ready(folder / "gateway", **settings, GATEWAY_MODE="true") as server:
        _sessions(server, 2, speech[: 4 * SAMPLE_RATE])
        return _sessions(server, sessions, speech)


def _proxy(server: ServerProcess, folder: Path, sessions: int, speech: np.ndarray) -> dict[str, dict[str, float]]:
    """Return the costs of HAProxy in front of the server, if it is installed."""
    if (program := shutil.which("haproxy")) is None:
        return {}
    port, path = free_port(), folder / "haproxy.cfg"
    path.write_text(_PROXY.format(port=port, server=server.port))
    with subprocess.Popen([program, "-f", str(path)]) as process:
        try:
            _wait_for(port)
            before_s, length_s = _cpu_s(f"/proc/{process.pid}/stat"), len(speech) / SAMPLE_RATE
            _play(f"http://127.0.0.1:{port}", sessions, speech)
            took_s = _cpu_s(f"/proc/{process.pid}/stat") - before_s
        finally:
            process.terminate()
    return {"haproxy_speaking": {"process_s_per_s": round(took_s / sessions / length_s, 5)}}


def _wait_for(port: int) -> None:
    give_up_s = time.monotonic() + 10
    while time.monotonic() < give_up_s:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError("HAProxy does not listen")


def _play(base: str, count: int, pcm: np.ndarray) -> None:
    trace = Trace(len(pcm) / SAMPLE_RATE + 5, 0, [Speaker(0.02 * number, ()) for number in range(count)])
    asyncio.run(streams.play([base], trace, [pcm] * count, pcm[:SAMPLE_RATE]))


def _sessions(server: ServerProcess, count: int, pcm: np.ndarray) -> dict[str, float]:
    """Sessions that all send `pcm`, each from a moment of its own: pieces that come together cost less."""
    length_s, chance = len(pcm) / SAMPLE_RATE, random.Random(1)
    trace = Trace(length_s + 5, 0, [Speaker(chance.uniform(0, BEGIN_S), ()) for _ in range(count)])
    before = _usage(server)

    async def run() -> dict[str, float]:
        playing = asyncio.create_task(streams.play([server.base], trace, [pcm] * count, pcm[:SAMPLE_RATE]))
        await asyncio.sleep(BEGIN_S + length_s / 2)
        middle = _usage(server)
        await playing
        return middle

    middle, after = asyncio.run(run()), _usage(server)
    whole_s = count * length_s
    return {
        "event_loop_s_per_s": round((after["main_s"] - before["main_s"]) / whole_s, 5),
        "process_s_per_s": round((after["process_s"] - before["process_s"]) / whole_s, 5),
        "client_s_per_s": round((after["client_s"] - before["client_s"]) / whole_s, 5),
        "memory_mib": round((middle["mib"] - before["mib"]) / count, 2),
        "sockets": round((middle["sockets"] - before["sockets"]) / count, 2),
    }


def _files(server: ServerProcess) -> dict[str, float]:
    """Recordings one after the other, with the processes that decode them."""
    pcm = np.resize(recordings.samples(), int(UPLOAD_S * SAMPLE_RATE))
    trace = Trace(1e9, 0, uploads=[Upload(0.2 * number, (UPLOAD_S,)) for number in range(UPLOADS)])
    before = _usage(server)
    played = asyncio.run(streams.play([server.base], trace, [], pcm))
    after = _usage(server)
    return {
        "event_loop_s_per_s": round((after["main_s"] - before["main_s"]) / played.answered_s, 6),
        "all_processes_s_per_s": round((after["family_s"] - before["family_s"]) / played.answered_s, 6),
        "client_s_per_s": round((after["client_s"] - before["client_s"]) / played.answered_s, 6),
    }


def _usage(server: ServerProcess) -> dict[str, float]:
    pid = server.process.pid
    family = [pid, *_children(pid)]
    return {
        "main_s": _cpu_s(f"/proc/{pid}/task/{pid}/stat"),
        "process_s": _cpu_s(f"/proc/{pid}/stat"),
        # With what children used that have ended: their parent's account has it.
        "family_s": sum(_cpu_s(f"/proc/{one}/stat", ended=True) for one in family),
        "client_s": time.process_time(),
        "mib": server.own_mb(),
        "sockets": sum(os.readlink(link).startswith("socket") for link in _links(pid)),
    }


def _links(pid: int) -> list[Path]:
    return [link for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]


def _children(pid: int) -> list[int]:
    children = [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*children, *(p for child in children for p in _children(child))]


def _cpu_s(path: str, *, ended: bool = False) -> float:
    fields = Path(path).read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11 : 15 if ended else 13])) / _TICKS
