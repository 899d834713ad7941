"""A worker whose gateway is gone, as a process of its own."""

import subprocess
import sys

SCRIPT = """
import time
from asr_server.gateway.child import end_with_gateway
end_with_gateway()
time.sleep(30)
"""


def test_it_ends_with_its_standard_input():
    """The gateway holds the other end, which closes with it, however it ends."""
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        stdin=subprocess.DEVNULL,
        env={"PYTHONPATH": ":".join(sys.path)},
        timeout=60,
        check=False,
    )
    assert ended.returncode < 0
