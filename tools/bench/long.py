"""What does a recording of two hours cost in memory and time, against a loaded server that does nothing?"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

import av
import numpy as np

from E2Etest.drive import recordings
from E2Etest.drive.process import ServerProcess
from E2Etest.drive.procfs import resident_mb
from E2Etest.drive.session import pcm_of


def measure(hours: float = 2.0) -> dict[str, object]:
    """Peak resident MiB over the loaded model (server process, and with its children), and seconds of work."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "long.flac"
        seconds = _write(path, hours * 3600)
        server = ServerProcess(Path(directory) / "log", REQUEST_TIMEOUT="7200", MAX_AUDIO_S="10000")
        try:
            server.wait_until_live()
            server.transcribe(recordings.sample()[0])
            loaded_mb, loaded_all_mb = resident_mb(server.process.pid), server.resident_mb()
            peaks, done = [(loaded_mb, loaded_all_mb)], threading.Event()

            def watch() -> None:
                while not done.wait(0.25):
                    peaks.append((resident_mb(server.process.pid), server.resident_mb()))

            watcher = threading.Thread(target=watch)
            watcher.start()
            began = time.perf_counter()
            with path.open("rb") as file:
                answer = server.client.post(
                    "/v1/audio/transcriptions", files={"file": file}, data={"model": "demo"}, timeout=7200
                )
            took_s = time.perf_counter() - began
            done.set()
            watcher.join()
            answer.raise_for_status()
            return {
                "question": f"{seconds / 3600:.2f} h of speech with short pauses (FLAC), demo checkpoint, one request",
                "words": len(answer.json()["text"].split()),
                "took_s": round(took_s, 1),
                "times_real_time": round(seconds / took_s, 1),
                "loaded_mb": round(loaded_mb, 1),
                "peak_over_loaded_mb": round(max(own for own, _ in peaks) - loaded_mb, 1),
                "peak_over_loaded_with_children_mb": round(max(whole for _, whole in peaks) - loaded_all_mb, 1),
                "target": "server process at most 300 MB over the loaded model",
            }
        finally:
            server.stop()


def _write(path: Path, seconds: float) -> float:
    """All held-out clips in turn with pauses of 0.2 to 1.5 s, until that long. Returns the seconds written."""
    clips = [pcm_of(clip.path) for clip in recordings.clips()]
    pauses, written = np.random.default_rng(0), 0
    with av.open(str(path), "w", format="flac") as output:
        stream = output.add_stream("flac", rate=16_000, layout="mono")
        while written < seconds * 16_000:
            for clip in clips:
                pcm = np.concatenate([clip, np.zeros(int(16_000 * pauses.uniform(0.2, 1.5)), np.int16)])
                frame = av.AudioFrame.from_ndarray(pcm[None], format="s16", layout="mono")
                frame.sample_rate, frame.pts = 16_000, written
                output.mux(stream.encode(frame))
                written += len(pcm)
        output.mux(stream.encode(None))
    return written / 16_000
