"""How fast is the engine beside an older commit of itself? Both loaded, in processes of their own, asked in turns.

The older one is the `src` of a git revision. Each side has settings of its own, by default those that it chooses by
itself; BENCH_OLD_REVISION, BENCH_OLD and BENCH_NEW change that: `BENCH_NEW="QUANTIZE=int8 DTYPE=bfloat16"`.
"""

from __future__ import annotations

import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tools.bench.engines import SPAN_S
from tools.checkpoints.recogniser import random_checkpoint

ROOT = Path(__file__).parents[2]
OLD_REVISION = "c4cf5b3e"  # before a step was one compiled graph on a CPU
ROWS = (1, 8)
ROUNDS = 3


class Side:
    """An engine in its own process, whose `asr_server` is that below `source`."""

    def __init__(self, source: Path, chosen: str, checkpoint: Path) -> None:
        environment = {**os.environ, **dict(setting.split("=", 1) for setting in chosen.split())}
        environment["PYTHONPATH"] = str(source)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tools.bench.engine_side", str(checkpoint)],
            env=environment,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def answer(self) -> dict[str, Any]:
        """The next line that it writes."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the engine ended with {self._process.wait()}; its errors are above"
        found: dict[str, Any] = json.loads(line)
        return found

    def transcribe(self, rows: int) -> dict[str, float]:
        """Transcribe this many spans together. Returns the seconds, and their parts."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{rows}\n")
        self._process.stdin.flush()
        return self.answer()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def measure(rounds: int = ROUNDS) -> dict[str, object]:
    """Medians of both sides, and of the ratio within each round. Takes four minutes on two cores."""
    revision, checkpoint = os.environ.get("BENCH_OLD_REVISION", OLD_REVISION), random_checkpoint("0.6b")
    chosen = {"old": os.environ.get("BENCH_OLD", ""), "new": os.environ.get("BENCH_NEW", "")}
    with old_source(revision) as old, ExitStack() as stack:
        sides, settings = {}, {}
        for name, source in {"old": old, "new": ROOT / "src"}.items():  # one after the other: a load uses all cores
            sides[name] = Side(source, chosen[name], checkpoint)
            stack.callback(sides[name].close)
            settings[name] = sides[name].answer()
        turns = [
            {rows: {name: side.transcribe(rows) for name, side in sides.items()} for rows in ROWS}
            for _ in range(rounds)
        ]
    return {
        "question": f"Spans of {SPAN_S} s, random 0.6b weights, forced answers, against {revision}, {rounds} rounds",
        "settings": settings,
        **{f"rows_{rows}": _figures([turn[rows] for turn in turns]) for rows in ROWS},
        "target": "30 s at most 5.0 s, eight 16 s; step 38 and 70 ms",
    }


def _figures(turns: list[dict[str, dict[str, float]]]) -> Mapping[str, object]:
    """Return the medians and the least of each quantity, and the median of how many times less the new side took."""
    return {
        name: {
            **{side: round(statistics.median(turn[side][name] for turn in turns), 2) for side in ("old", "new")},
            "least": [round(min(turn[side][name] for turn in turns), 2) for side in ("old", "new")],
            "times": round(statistics.median(turn["old"][name] / turn["new"][name] for turn in turns), 2),
        }
        for name in turns[0]["new"]
    }


@contextmanager
def old_source(revision: str) -> Iterator[Path]:
    """The `src` of that revision in a temporary directory."""
    packed = subprocess.run(["git", "archive", revision, "src"], cwd=ROOT, check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(packed)) as files:
            files.extractall(folder, filter="data")
        yield Path(folder) / "src"
