"""The whole server on the device: recordings, streams and live sessions of many callers over its sockets."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from E2Etest.drive import recordings
from E2Etest.drive.process import LOAD_TIMEOUT_S, ServerProcess
from E2Etest.drive.wire import form
from tools.bench import engines
from tools.bench.engines import percentiles
from tools.gpu import engine_time
from tools.gpu.rig import Rig

CALLERS, SHORT_CALLERS, SESSIONS = (32, 128), (32,), (50, 200)
SHORT_S = 5.0
# Seconds that each number of callers and of sessions is measured for.
CALLING_S, SPEAKING_S = 5.0, 12.0
# Processes that callers and speakers are divided among, so that they do not wait for each other.
PROCESSES = 4
# The first seconds of a load, in which it only gets going.
WARM_UP_S = 1.5
_CHUNK_SAMPLES = engines.RATE // 10
_TIMES = "engine-times"


def recordings_of_callers(rig: Rig) -> dict[str, object]:
    """Recordings of 30 s, one after the other from each caller, with the engine in the server's process and in its own.
    The last server stays for the next parts."""
    return {name: {**_start(rig, name), **_loads(rig, _call, CALLERS, CALLING_S)} for name in ("one_process", "two")}


def short_clips(rig: Rig) -> dict[str, object]:
    """Recordings of 5 s."""
    return _loads(rig, _call_shortly, SHORT_CALLERS, CALLING_S)


def live_sessions(rig: Rig) -> dict[str, object]:
    """Live sessions that speak without a pause."""
    return _loads(rig, _speak, SESSIONS, SPEAKING_S)


def stop(rig: Rig) -> None:
    """End the server of an earlier part."""
    if "server" in rig.held:
        rig.held.pop("server")
        rig.held.pop("processes").shutdown()
        rig.held.pop("stack").close()


def _start(rig: Rig, engine: str) -> dict[str, object]:
    """Start a server with random weights of the shape, and load them before anything is asked."""
    stop(rig)
    stack = ExitStack()
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    server, ready_s = stack.enter_context(_serving(rig, folder, own_process=engine == "two"))
    processes = ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn"))
    rig.held.update(server=server, processes=processes, stack=stack)
    _load(server, processes, _call, 8, 3.0)  # admission measures the engine's speed
    health = server.health()
    return {
        "start_to_ready_s": round(ready_s, 1),
        "plan": {option["name"]: f"{option['value']}: {option['reason']}" for option in health["plan"]},
        **{name: health[name] for name in ("cuda", "gpu_name", "slots", "kv_budget_mb")},
    }


def _loads(rig: Rig, one: Caller, counts: Sequence[int], seconds: float) -> dict[str, object]:
    """Return the load of each number of callers; on a CPU there is one."""
    if "server" not in rig.held:
        _start(rig, "two")
    server, found = rig.held["server"], dict[str, object]()
    for count in counts if rig.device != "cpu" else (1,):
        found[str(count)] = _load(server, rig.held["processes"], one, count, seconds)
        print(one.__name__, count, json.dumps(found[str(count)]), file=sys.stderr, flush=True)
    found["logged_errors"] = [line[:300] for line in server.log().splitlines() if " ERROR " in line[:40]][:5]
    assert server.health()["status"] == "ok", server.health()
    return found


@dataclass
class Heard:
    """Callers of one process saw this in the time that counts. Times are in ms."""

    answers_ms: list[float] = field(default_factory=list)
    partials_ms: list[float] = field(default_factory=list)  # from the arrival of the newest audio that it is about
    finals_ms: list[float] = field(default_factory=list)
    audio_s: float = 0.0  # that was answered
    errors: dict[str, int] = field(default_factory=dict)

    def add(self, other: Heard) -> None:
        """Add those of another process."""
        for name in ("answers_ms", "partials_ms", "finals_ms"):
            getattr(self, name).extend(getattr(other, name))
        self.audio_s += other.audio_s
        for name, count in other.errors.items():
            self.errors[name] = self.errors.get(name, 0) + count

    def failed(self, name: str) -> None:
        """Count an error."""
        self.errors[name] = self.errors.get(name, 0) + 1


# One caller: the port, what it adds to, when counting begins and calling ends, its number and its place in [0, 1).
Caller = Callable[[int, Heard, float, float, int, float], Awaitable[None]]


@contextmanager
def _serving(rig: Rig, folder: Path, *, own_process: bool) -> Iterator[tuple[ServerProcess, float]]:
    began_s = time.monotonic()
    server = ServerProcess(
        folder / "log",
        program=("-m", "tools.gpu.scripted_server"),
        PYTHONPATH=os.pathsep.join((str(Path.cwd()), os.environ.get("PYTHONPATH", ""))),
        ENGINE_TIMES=str(folder / _TIMES),
        MODEL_ID=rig.model_id,
        DEVICE=rig.device,
        ENGINE_PROCESS=str(own_process).lower(),
        RUNTIME="torch",
        PRELOAD="true",
        IDLE_TIMEOUT="0",
        LOG_LEVEL="INFO",
        SPEECH="off",
        MAX_LIVE_SESSIONS=str(2 * max(SESSIONS)),
    )
    try:
        server.wait_until_live(LOAD_TIMEOUT_S)
        server.wait_for(lambda health: health["model_loaded"], timeout_s=LOAD_TIMEOUT_S)
        yield server, time.monotonic() - began_s
    except BaseException:
        print(server.log()[-4000:])
        raise
    finally:
        server.stop()


def _load(
    server: ServerProcess, processes: ProcessPoolExecutor, one: Caller, count: int, seconds: float
) -> dict[str, object]:
    """Have `count` callers at once; return what they saw, and the processor time of the server's threads."""
    # The workers have imported what they need by then.
    begin_s = time.monotonic() + 2.0
    waiting = [
        processes.submit(_callers, one, server.port, range(number, count, PROCESSES), count, begin_s, begin_s + seconds)
        for number in range(min(PROCESSES, count))
    ]
    time.sleep(max(0.0, begin_s + WARM_UP_S - time.monotonic()))
    cpu, times = _seconds_of_threads(server), engine_time.read(server.log_path.with_name(_TIMES))
    time.sleep(max(0.0, begin_s + seconds - time.monotonic()))
    after = _seconds_of_threads(server)
    engine_times = engine_time.between(times, engine_time.read(server.log_path.with_name(_TIMES)))
    heard = Heard()
    for one_process in waiting:
        heard.add(one_process.result())
    measured_s = seconds - WARM_UP_S
    used = {thread: (after[thread] - cpu.get(thread, 0.0)) / measured_s for thread in after}
    main = used.pop(server.process.pid, 0.0)
    found: dict[str, object] = {"errors": heard.errors}
    if heard.answers_ms:
        found |= {
            "answers": len(heard.answers_ms),
            "audio_s_per_s": round(heard.audio_s / measured_s, 1),
            "answer_ms": percentiles([heard.answers_ms]),
        }
    for name in ("partials_ms", "finals_ms"):
        if values := getattr(heard, name):
            found[name] = {"count": len(values), **percentiles([values]), "most": round(max(values), 1)}
    health = server.health()
    return {
        **found,
        "event_loop_cores": round(main, 2),
        "other_threads_cores": [round(share, 2) for share in sorted(used.values(), reverse=True)[:4]],
        "engine_thread": engine_times,  # calls in a second, percentages of the time that they took and computed
        "resident_mb": round(server.own_mb()),
        "gpu_reserved_mb": health["gpu_reserved_mb"],
    }


def _seconds_of_threads(server: ServerProcess) -> dict[int, float]:
    """Return the processor time of each thread of the server and of its children, of which one may be the engine."""
    pid = server.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {thread: used for own in (pid, *map(int, children)) for thread, used in _thread_seconds(own).items()}


def _thread_seconds(pid: int) -> dict[int, float]:
    """Return the processor time of each thread."""
    found: dict[int, float] = {}
    if not (tasks := Path(f"/proc/{pid}/task")).is_dir():
        return found
    for task in tasks.iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            found[int(task.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def _callers(one: Caller, port: int, numbers: range, count: int, begin_s: float, end_s: float) -> Heard:
    """Run some of the callers in this process."""

    async def all_of_them() -> Heard:
        heard = Heard()
        await asyncio.sleep(begin_s - time.monotonic())
        await asyncio.gather(
            *(one(port, heard, begin_s + WARM_UP_S, end_s, number, number / count) for number in numbers)
        )
        return heard

    return asyncio.run(all_of_them())


def _address(number: int) -> tuple[str, int]:
    """Return an address of this machine for each caller: what one caller may have is limited."""
    return f"127.1.{number // 250}.{number % 250 + 1}", 0


def _request(seconds: float) -> bytes:
    body = form(recordings.wav((32_767 * engines.speech(seconds)).astype(np.int16)), model="whisper-1")
    return (
        "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


async def _call(
    port: int, heard: Heard, count_s: float, end_s: float, number: int, _: float, seconds: float = engines.SPAN_S
) -> None:
    """Send one recording after the other."""
    request = _request(seconds)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=_address(number))
    while (began_s := time.monotonic()) < end_s:
        writer.write(request)
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        body = await reader.readexactly(int(length.split(b":")[1]))
        now_s = time.monotonic()
        if now_s < count_s:
            continue
        if head.split()[1] != b"200":
            heard.failed(f"{head.split()[1].decode()} {body[:120].decode(errors='replace')}")
        else:
            heard.answers_ms.append(1000 * (now_s - began_s))
            # Of an answer that began before the time that counts, or ends after it, the part within it.
            heard.audio_s += seconds * (min(now_s, end_s) - max(began_s, count_s)) / (now_s - began_s)
    writer.close()


async def _call_shortly(port: int, heard: Heard, count_s: float, end_s: float, number: int, place: float) -> None:
    """Send one short recording after the other."""
    await _call(port, heard, count_s, end_s, number, place, SHORT_S)


async def _speak(port: int, heard: Heard, count_s: float, end_s: float, number: int, place: float) -> None:
    """Speak without a pause into one live session; `place` in [0, 1) is where in the speech it begins."""
    pcm = (32_767 * engines.speech(engines.SPAN_S)).astype("<i2")
    pcm = np.roll(pcm, -int(place * len(pcm)))
    try:
        await asyncio.sleep(place * WARM_UP_S)  # not all at the same moment
        url = f"ws://127.0.0.1:{port}/ws/transcribe?language=en"
        async with connect(url, compression=None, max_size=None, local_addr=_address(number)) as socket:
            reader = asyncio.create_task(_read(socket, heard, count_s))
            began_s, at = time.monotonic(), 0
            while time.monotonic() < end_s:
                await asyncio.sleep(began_s + (at + 1) / 10 - time.monotonic())
                chunk = pcm[at * _CHUNK_SAMPLES % len(pcm) :][:_CHUNK_SAMPLES]
                await socket.send(chunk.tobytes())
                at += 1
            await socket.send(json.dumps({"action": "flush"}))
            await asyncio.wait_for(reader, 20)
    except (WebSocketException, TimeoutError, OSError) as error:
        heard.failed(f"{type(error).__name__}: {error}"[:120])


async def _read(socket, heard: Heard, count_s: float) -> None:
    async for text in socket:
        message = json.loads(text)
        if "error" in message or message.get("type") == "error":
            heard.failed(str(text)[:120])
        if "lag_ms" in message and message.get("text") and time.monotonic() >= count_s:
            (heard.finals_ms if message["is_final"] else heard.partials_ms).append(message["lag_ms"])
        if message.get("ending") == "flush":
            return
