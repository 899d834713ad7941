import shutil
import socket
import stat
import tempfile
from pathlib import Path

import pytest

from asr_server.core.unix_sockets import private_socket


@pytest.mark.parametrize("length", [20, 71, 72, 90, 200])
def test_a_socket_can_be_made_wherever_temporary_files_are(monkeypatch, request, length):
    """Also below a long path, and nobody else can enter its folder. The path of a socket has 103 characters at most."""
    root = Path(tempfile.mkdtemp(dir="/tmp"))
    request.addfinalizer(lambda: shutil.rmtree(root))
    deep = root / ("d" * (length - len(f"{root}/")))
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with private_socket() as path, socket.socket(socket.AF_UNIX) as listener:
        assert len(str(path)) <= 103
        assert path.is_relative_to(deep) == (length <= 71)
        listener.bind(str(path))
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.parent.exists()
