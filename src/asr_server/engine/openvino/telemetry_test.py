"""OpenVINO is imported without a message to its makers."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.torch

_PROGRAM = """
import socket, sys
def refused(*arguments): raise AssertionError("a connection is opened")
socket.socket.connect = refused
import asr_server.engine.openvino.compiled_text
import openvino
openvino.Core()
assert not any(name.startswith("openvino_telemetry") and sys.modules[name] for name in sys.modules)
"""


def test_it_tells_nothing(tmp_path):
    """The package that sends events is not imported, and no number that names this user is written."""
    subprocess.run([sys.executable, "-c", _PROGRAM], check=True, env={**os.environ, "HOME": str(tmp_path)})
    assert not [file for file in tmp_path.iterdir() if "intel" in file.name.lower()]
