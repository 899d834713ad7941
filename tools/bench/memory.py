"""How much memory does the server hold before, during and after use, and how soon does it answer?"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from E2Etest.drive import recordings
from E2Etest.drive.process import ServerProcess


def measure() -> dict[str, object]:
    """Resident MiB of the process and its children, and seconds to the first `/health` and the first transcript."""
    with tempfile.TemporaryDirectory() as directory:
        began = time.perf_counter()
        server = ServerProcess(Path(directory) / "log", IDLE_TIMEOUT="1")
        try:
            server.wait_until_live()
            answers_s = time.perf_counter() - began
            fresh = server.resident_mb()
            began = time.perf_counter()
            assert server.transcribe(recordings.sample()[0]).status_code == 200
            first_s, loaded = time.perf_counter() - began, server.resident_mb()
            server.wait_for(lambda h: not h["model_loaded"])
            time.sleep(3)
            return {
                "question": "Resident memory in MiB, children included, demo checkpoint, standalone",
                "fresh_mb": round(fresh, 1),
                "loaded_mb": round(loaded, 1),
                "after_idle_unload_mb": round(server.resident_mb(), 1),
                "first_health_s": round(answers_s, 2),
                "first_transcript_s": round(first_s, 2),
                "target": "fresh under 80 MB; /health within 2 s",
            }
        finally:
            server.stop()
