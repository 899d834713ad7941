"""Does the simulation say what two real servers do? One trace of live sessions and recordings, simulated and played.

Each server has one core and one thread, on the demonstration model. What steps cost is measured before on one server's
engine alone, what the sessions cost beside it on the fake engine, both on one core; nothing is fitted to the run. The
clients have no core of their own, so what they take counts as work of the servers. The loads are as much as the
simulation says makes the engines as busy as `BUSY` says.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from asr_server.core.settings import Settings
from asr_server_sizing import files
from asr_server_sizing.planning import rank
from asr_server_sizing.profile import Profile
from asr_server_sizing.replica import HostCosts
from asr_server_sizing.simulation import Outcome, Servers, Speaker, Trace, Upload, simulate
from asr_server_sizing.speech import LiveRules
from E2Etest.process import ServerProcess, ready
from tools.bench import live_cost, streams

BUSY = (0.4, 0.6)
DURATION_S, WARM_UP_S = 45.0, 8.0
PAUSE_S, UPLOAD_S, UPLOAD_EVERY_S = 1.5, 12.0, 3.0
MOST_SESSIONS = 60


def measure(model_id: str = "demo", cores: Sequence[int] = (0, 1)) -> dict[str, object]:
    """Simulated and measured figures of the same trace, and their ratios. Takes five minutes."""
    profile = calibrate(model_id, cores[0])
    with _on_core(cores[0]):
        cost = live_cost.measure(sessions=20, seconds=10.0, gateway=False)
    silent_s, speaking_s = (_with_client(cost[name], "process_s_per_s") for name in ("silent", "speaking"))
    host = HostCosts(
        silent_s=silent_s,
        voiced_s=silent_s + (speaking_s - silent_s) / cost["voiced"],  # of speech, without the silence between
        recording_s=_with_client(cost["recordings"], "all_processes_s_per_s"),
        shared_cores=1,
    )
    servers = Servers(len(cores), profile, LiveRules.of(Settings(_env_file=None)), host)
    return {
        "question": f"live sessions and a recording every {UPLOAD_EVERY_S:g} s on two servers",
        "load_average": os.getloadavg()[0],
        "profile": asdict(profile),
        "host": {"silent_s": host.silent_s, "voiced_s": host.voiced_s, "recording_s": host.recording_s},
        "loads": [_compare(servers, busy, model_id, cores) for busy in BUSY],
        "target": "ratios of throughput and p95 between 0.85 and 1.15",
    }


def _compare(servers: Servers, busy: float, model_id: str, cores: Sequence[int]) -> dict[str, object]:
    voices, trace, simulated = _load(servers, busy)
    upload = streams.talk(UPLOAD_S, 0.3, seed=99)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        real = [running.enter_context(_pinned(Path(folder) / f"log{core}", core, model_id)) for core in cores]
        asyncio.run(streams.play([server.base for server in real], _short(trace), voices, upload))  # all is warm then
        before = [_used_and_all(core) for core in cores]
        played = asyncio.run(streams.play([server.base for server in real], trace, voices, upload))
        after = [_used_and_all(core) for core in cores]
    said, was = _figures(simulated), _played_figures(played)
    return {
        "sessions": len(trace.speakers),
        "simulated_busy": round(simulated.busy, 2),
        "simulated_cores_busy": round(_cores_busy(servers, trace, simulated), 2),
        "cores_busy": [round((a[0] - b[0]) / (a[1] - b[1]), 2) for a, b in zip(after, before, strict=True)],
        "simulated": said,
        "measured": was,
        "ratios": {name: round(said[name] / was[name], 2) for name in said if said[name] and was.get(name)},
    }


def _cores_busy(servers: Servers, trace: Trace, simulated: Outcome) -> float:
    """The share of a core that the engine and all else take: in a step the core has no time left."""
    host = servers.host
    all_s = len(trace.speakers) * trace.duration_s
    voiced_s = sum(end - begin for speaker in trace.speakers for begin, end in speaker.regions)
    recordings_s = sum(sum(upload.spans_s) for upload in trace.uploads)
    used_s = (all_s - voiced_s) * host.silent_s + voiced_s * host.voiced_s + recordings_s * host.recording_s
    return simulated.busy + (1 - simulated.busy) * used_s / trace.duration_s / servers.replicas


def _used_and_all(core: int) -> tuple[int, int]:
    """Ticks of the core: not idle, and in all."""
    (line,) = (line for line in Path("/proc/stat").read_text().splitlines() if line.startswith(f"cpu{core} "))
    user, nice, system, idle, waiting, *others = map(int, line.split()[1:9])
    used = user + nice + system + sum(others)
    return used, used + idle + waiting


def calibrate(model_id: str, core: int) -> Profile:
    """The costs of steps on one core, with nothing else on it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "costs.json"
        environment = {**os.environ, "MODEL_ID": model_id, "OMP_NUM_THREADS": "1", "CPU_THREADS": "1"}
        command = [sys.executable, "-m", "asr_server", "size", "--measure", "--save", str(path)]
        with _on_core(core):
            subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        return replace(files.read(path), cores=1)


def _with_client(cost: dict[str, float], server: str) -> float:
    return cost[server] + cost["client_s_per_s"]


def _load(servers: Servers, busy: float) -> tuple[list, Trace, Outcome]:
    """The voices and the trace of the first load that keeps the simulated engines as busy as that."""
    for count in range(2, MOST_SESSIONS + 1, 2):
        voices = [streams.talk(DURATION_S - 0.3 * n / count, PAUSE_S, seed=n) for n in range(count)]
        speakers = [Speaker(0.3 * n / count, streams.regions(pcm)) for n, pcm in enumerate(voices)]
        uploads = [Upload(1.0 + UPLOAD_EVERY_S * n, (UPLOAD_S,)) for n in range(int(DURATION_S / UPLOAD_EVERY_S) - 1)]
        trace = Trace(DURATION_S, WARM_UP_S, speakers, uploads)
        if (found := simulate(servers, trace)).busy >= busy:
            break
    return voices, trace, found


def _short(trace: Trace) -> Trace:
    return replace(trace, uploads=trace.uploads[:2])


@contextmanager
def _on_core(core: int) -> Iterator[None]:
    """Processes that are started in the block have this core alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def _pinned(log: Path, core: int, model_id: str) -> Iterator[ServerProcess]:
    with ExitStack() as running:
        with _on_core(core):
            one_thread = {"OMP_NUM_THREADS": "1", "CPU_THREADS": "1", "LOG_LEVEL": "INFO"}
            server = running.enter_context(ready(log, MODEL_ID=model_id, **one_thread))
        yield server


def _figures(found: Outcome) -> dict[str, float | None]:
    return _ranks(found.lags.partials_s, found.lags.finals_s, found.uploads_s) | {
        "recordings_s_per_s": round(found.answered_s_per_s, 3),
    }


def _played_figures(played: streams.Played) -> dict[str, float | None]:
    return _ranks(played.partials_s, played.finals_s, played.uploads_s) | {
        "recordings_s_per_s": round(played.answered_s / (DURATION_S - WARM_UP_S), 3),
    }


def _ranks(partials_s, finals_s, uploads_s) -> dict[str, float | None]:
    found = {}
    for name, values in (("partial", partials_s), ("final", finals_s), ("recording", uploads_s)):
        for percent in (50, 95):
            value = rank(values, percent / 100)
            found[f"{name}_p{percent}_ms"] = None if value is None else round(1000 * value, 1)
    return found | {"partials_per_s": round(len(partials_s) / (DURATION_S - WARM_UP_S), 2)}
