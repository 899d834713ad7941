"""The heap of this C library."""

import subprocess
import sys

# 64 MB in blocks too small to be mapped on their own, one of 64 kept: what is freed lies between what stays.
_HOLES = """
from pathlib import Path
from asr_server.core import heap

def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

blocks = [bytes([1]) * 16_000 for _ in range(4_000)]
kept = blocks[::64]
before = heap.free_bytes()
del blocks
print((heap.free_bytes() - before) / 2**20)
before = resident_mb()
heap.trim()
print(before - resident_mb())
"""


def test_pages_with_nothing_in_them_go_back():
    """Pages between pages that are in use go back too, which the library keeps by itself; it says how much that is."""
    done = subprocess.run([sys.executable, "-c", _HOLES], capture_output=True, text=True, check=True)
    free_mb, given_back_mb = map(float, done.stdout.split())
    assert 55 < free_mb < 65
    assert given_back_mb > 40
