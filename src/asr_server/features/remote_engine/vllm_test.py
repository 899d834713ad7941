"""`vllm serve` as a child process, with a small program in its place that takes the same arguments."""

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from asr_server.core.errors import ModelUnavailable
from asr_server.engine.conftest import ends
from asr_server.engine.protocol import Utterance
from asr_server.features.remote_engine import vllm
from asr_server.features.remote_engine.conftest import SLIM
from asr_server.schedule.model import RowDone
from E2Etest.drive.procfs import until, wait_until_gone

# Answers with its arguments, to a caller with the key; `crash` in the prompt ends it, its connections first. Writes its
# process id to a file.
PROGRAM = """#!{python}
import json, os, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
{first}
open("{pids}", "a").write(f"{{os.getpid()}}\\n")

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        asked = self.rfile.read(int(self.headers["content-length"] or 0))
        if b"crash" in asked:
            self.server.socket.close()
            self.connection.shutdown(2)
            time.sleep(0.3)
            os._exit(1)
        Handler.stalled = 2 if b"stall" in asked else max(0, Handler.stalled - 1)
        allowed = self.headers["authorization"] == "Bearer " + os.environ["VLLM_API_KEY"]
        self.send_response(503 if self.stalled else 200 if allowed else 401)
        self.end_headers()
        models = [{{"id": sys.argv[2], "owned_by": "vllm"}}]
        self.wfile.write(json.dumps({{"data": models, "text": " ".join(sys.argv[1:])}}).encode())

    do_POST, log_message, stalled = do_GET, lambda *_: None, 0

host, port = sys.argv[sys.argv.index("--host") + 1], int(sys.argv[-1].removeprefix("--port="))
HTTPServer((host, port), Handler).serve_forever()
"""
AUDIO = Utterance(np.zeros(16_000, np.float32))


def _command(folder, first=""):
    """Write the program; `first` is run at its start. Return its path, and the file of its process ids."""
    path, pids = folder / "vllm", folder / "pids"
    path.write_text(PROGRAM.format(python=sys.executable, first=first, pids=pids))
    path.chmod(0o755)
    return path, pids


@pytest.fixture
def engine_for(built):
    return lambda path: built(replace(SLIM, vllm=str(path)), use_vllm=True, model_id="owner/model", max_batch=3)


def _end(engine, utterance=AUDIO):
    (end,), _ = ends(engine, utterance)
    return end


@pytest.mark.slow("starts processes and waits for them")
def test_it_runs_while_the_model_is_loaded_and_again_after_a_crash(tmp_path, engine_for, monkeypatch):
    """The child has a secret key, and a port that no connection can get before it listens."""
    path, pids = _command(tmp_path, "time.sleep(1)")
    engine = engine_for(path)
    engine.load()
    arguments, port = _end(engine).value.text.split(" --port=")
    first, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert arguments == "serve owner/model --max-num-seqs=3 --host 127.0.0.1"
    assert 1024 < int(port) < first
    monkeypatch.setattr(vllm, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 7200))
    assert isinstance(_end(engine, Utterance(AUDIO.audio, context="stall")).error, ModelUnavailable)
    engine.load()
    assert len(pids.read_text().split()) == 1  # though it began long ago
    assert isinstance(_end(engine, Utterance(AUDIO.audio, context="crash")).error, ModelUnavailable)
    assert not engine.loaded
    engine.load()
    assert isinstance(_end(engine), RowDone)
    _, pid = pids.read_text().split()
    assert Path(f"/proc/{pid}/cmdline").read_bytes()
    engine.unload()
    wait_until_gone(pid, 0.0)
    assert not engine.loaded


@pytest.mark.parametrize(
    ("first", "word"),
    [
        ('print("x"); sys.exit("ValueError: no memory for the model")', "ValueError: no memory for the model"),
        ("sys.exit(3)", "ended with code 3"),
        (None, "ended with code"),
    ],
)
def test_why_it_did_not_start_is_told(engine_for, tmp_path, first, word):
    """The error has the last line of its output that names an error. The file may be gone since the start."""
    path = tmp_path / "none" if first is None else _command(tmp_path, first)[0]
    with pytest.raises(ModelUnavailable, match=word):
        engine_for(path).load()


def test_it_ends_with_this_process(tmp_path):
    path, pids = _command(tmp_path)
    program = f"from asr_server.features.remote_engine.vllm import VllmProcess as V; V([{str(path)!r}, 'serve', 'x'])"
    parent = subprocess.Popen([sys.executable, "-c", f"{program}; import time; time.sleep(60)"])
    pid = until(lambda: pids.exists() and pids.read_text().strip())
    parent.kill()
    parent.wait()
    wait_until_gone(pid)
