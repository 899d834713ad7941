"""A worker that cannot be started."""

from __future__ import annotations

import tempfile

import pytest

from asr_server.cli.backends import local_settings, worker
from asr_server.cli.failure import NoServer


async def test_without_a_directory_for_temporary_files_the_message_says_so(monkeypatch, tmp_path):
    """The message is one line, which the command prints in place of a traceback."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(NoServer, match=r"cannot be started: .*No such file or directory"):
        async with worker(local_settings("demo")):
            pass
