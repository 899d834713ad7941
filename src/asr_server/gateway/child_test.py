"""A worker whose gateway is gone, as a process of its own."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys, time
from pathlib import Path
from asr_server.gateway.child import end_with_gateway
end_with_gateway(Path(sys.argv[1]))
time.sleep(30)
"""


@pytest.mark.parametrize("beside", [False, True])
def test_it_ends_and_takes_its_socket_and_nothing_else(tmp_path, beside):
    """The folder goes if it was the socket's alone: somebody may have started the command by hand, anywhere."""
    folder, other = tmp_path / "folder", tmp_path / "folder" / "other"
    folder.mkdir()
    (folder / "worker.sock").touch()
    if beside:
        other.touch()
    command = [sys.executable, "-c", SCRIPT, str(folder / "worker.sock")]
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, env={"PYTHONPATH": ":".join(sys.path)}, timeout=60, check=False
    )
    assert ended.returncode < 0
    assert not (folder / "worker.sock").exists()
    assert (folder.exists(), other.exists()) == (beside, beside)
