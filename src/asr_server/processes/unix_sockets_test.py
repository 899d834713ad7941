import os
import socket
import subprocess
import sys
import tempfile

import pytest

from asr_server.processes import unix_sockets
from asr_server.processes.unix_sockets import unnamed_socket


@pytest.mark.parametrize("in_memory", [True, False])
def test_it_has_no_name_that_could_vanish_and_is_reached_all_the_same(in_memory, monkeypatch, tmp_path):
    """Once it listens; before that, connections are refused. Its descriptors are closed at the end."""
    directory = tmp_path / ("d" * 200)  # too long a path for a name
    directory.mkdir()
    monkeypatch.setattr(unix_sockets, "_SHARED_MEMORY", str(directory if in_memory else tmp_path / "none"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none" if in_memory else directory))
    before = os.listdir("/proc/self/fd")
    with unnamed_socket() as place:
        assert list(directory.iterdir()) == []
        with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
            client.connect(str(place.path))
        place.listener.listen()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(place.path))
            with place.listener.accept()[0] as accepted:
                accepted.sendall(b"reached")
            assert client.recv(16) == b"reached"
        place.listener.close()
    # Nothing new; what others had open, the collector may have closed since.
    assert set(os.listdir("/proc/self/fd")) <= set(before)


def test_no_other_process_finds_it():
    with unnamed_socket() as place:
        place.listener.listen()
        script = f"import socket; socket.socket(socket.AF_UNIX).connect({str(place.path)!r})"
        elsewhere = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert elsewhere.stderr.splitlines()[-1].startswith("FileNotFoundError")
