"""Five thousand rows through one engine: what cannot be seen in a few requests."""

import subprocess
import sys

import pytest

# About half a minute on two cores, and twice that on a slow day.
pytestmark = [pytest.mark.performance, pytest.mark.nightly, pytest.mark.slow, pytest.mark.timeout(900)]

# Prints by how many MiB the process has grown.
_PROGRAM = """
import os
import numpy as np
from asr_server.engine.protocol import Utterance
from E2Etest.drive.procfs import resident_mb
from tools.bench import engines

engine = engines.load("demo", max_batch=8)
short = [Utterance(np.zeros(8_000, np.float32), session=f"s{i % 3}") for i in range(500)]
for _ in range(8):  # the heap grows for so long
    engines.run(engine, short)
before_mb = resident_mb(os.getpid())
for _ in range(10):
    engines.run(engine, short)
print(resident_mb(os.getpid()) - before_mb)
"""


def test_memory_does_not_grow_over_five_thousand_rows():
    """Rows and sessions come and go in a batch of eight, in a process of their own: what other tests leave behind in
    this one grows too."""
    run = subprocess.run([sys.executable, "-c", _PROGRAM], check=True, stdout=subprocess.PIPE, text=True)
    assert float(run.stdout) < 10
