"""Five thousand rows through one engine: what cannot be seen in a few requests."""

from pathlib import Path

import numpy as np
import pytest

from asr_server.engine.protocol import Utterance
from tools.bench import engines

# About half a minute on two cores, and twice that on a slow day.
pytestmark = [pytest.mark.performance, pytest.mark.nightly, pytest.mark.slow, pytest.mark.timeout(900)]


def _resident_kb():
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def test_memory_does_not_grow_over_five_thousand_rows():
    """Rows and sessions come and go in a batch of eight; what the process holds stays within 10 MB."""
    engine = engines.load("demo", max_batch=8)
    silence = np.zeros(8_000, np.float32)
    short = [Utterance(silence, session=f"s{i % 3}") for i in range(500)]
    for _ in range(8):  # the heap grows for so long
        engines.run(engine, short)
    before = _resident_kb()
    for _ in range(10):
        engines.run(engine, short)
    assert _resident_kb() - before < 10_000
