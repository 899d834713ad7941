"""The socket of a shared engine."""

import socket
import stat

import pytest

from asr_server.cli.engine import bound
from asr_server.cli.failure import UsageError


def test_a_socket_that_a_dead_engine_has_left_is_replaced_and_only_its_user_can_connect(tmp_path):
    path = tmp_path / "engine.sock"
    bound(path).close()
    with bound(path) as listener:
        listener.listen()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_the_socket_of_a_running_engine_stays(tmp_path):
    path = tmp_path / "engine.sock"
    with bound(path) as listener:
        listener.listen()
        with pytest.raises(UsageError, match="an engine listens there"):
            bound(path)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_a_file_that_is_no_socket_is_not_deleted(tmp_path):
    path = tmp_path / "notes"
    path.write_text("mine")
    with pytest.raises(UsageError, match="no socket"):
        bound(path)
    assert path.read_text() == "mine"
