"""What does a causal encoder save a live session? Partials of one utterance that grows, with both encoders in one run.

The released 0.6B's shape with random weights, which cost what tuned ones do. Each partial has the last answer as draft.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asr_server.engine.protocol import Utterance
from asr_server.engine.qwen_asr.engine import QwenEngine
from asr_server.features.encoders.options import CAUSAL_KEY
from tools.bench import engines
from tools.bench.engines import RATE
from tools.checkpoints.recogniser import random_checkpoint

UTTERANCE_S, STEP_S = 20, 1


def measure() -> dict[str, object]:
    """Encoder frames of the session, and milliseconds of its partials: on the clock, and of all cores together."""
    with causal_checkpoint() as tuned, engines.forced_answers():
        sides = {
            "windows": engines.load(str(random_checkpoint("0.6b"))),
            "causal": engines.load(str(tuned)),
        }
        taken = {name: list[tuple[float, float]]() for name in sides}
        frames, drafts = dict.fromkeys(sides, 0), dict.fromkeys(sides, ())
        for seconds in range(STEP_S, UTTERANCE_S + 1, STEP_S):
            audio = engines.speech(UTTERANCE_S)[: seconds * RATE]
            for name, engine in sides.items():
                work = Utterance(audio, session="live", draft=drafts[name])
                with _frames(engine) as encoded:
                    began, cpu = time.perf_counter(), time.process_time()
                    ((answer,), _) = engines.run(engine, [work])
                    taken[name].append((1000 * (time.perf_counter() - began), 1000 * (time.process_time() - cpu)))
                drafts[name], frames[name] = answer.ids, frames[name] + sum(encoded)
    return {
        "question": f"a partial each second of an utterance of {UTTERANCE_S} s, random 0.6b weights",
        **{name: {"encoder_frames": frames[name], **_figures(taken[name])} for name in sides},
    }


def _figures(taken: list[tuple[float, float]]) -> dict[str, int]:
    clock, cpu = zip(*taken, strict=True)
    return {
        "median_ms": round(statistics.median(clock)),
        "median_cpu_ms": round(statistics.median(cpu)),
        "sum_cpu_ms": round(sum(cpu)),
    }


@contextmanager
def _frames(engine: QwenEngine) -> Iterator[list[int]]:
    """The frames of each window that is encoded in the block."""
    runtime = engine.runtime
    assert runtime is not None
    encode, seen = runtime._encoder, list[int]()

    def counted(windows: object) -> object:
        seen.extend(window.mel.shape[1] for window in windows)
        return encode(windows)

    counted.device = encode.device
    runtime._encoder = counted
    try:
        yield seen
    finally:
        runtime._encoder = encode


@contextmanager
def causal_checkpoint() -> Iterator[Path]:
    """The random checkpoint with the key of a causal encoder; its weights are links."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "checkpoint"
        shutil.copytree(random_checkpoint("0.6b"), directory, copy_function=lambda a, b: Path(b).symlink_to(a))
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        config["thinker_config"]["audio_config"][CAUSAL_KEY] = 104
        (directory / "config.json").unlink()
        (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
        yield directory
