"""`vllm serve` as a child process, with a small program in its place that takes the same arguments."""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from asr_server.core.errors import ModelUnavailable
from asr_server.engine.conftest import ends
from asr_server.engine.protocol import Utterance
from asr_server.features.remote_engine.conftest import SLIM, until
from asr_server.schedule.model import RowDone

# Answers with its arguments, to a caller with the key; `crash` in the prompt ends it, its connections first. Writes its
# process id to a file.
PROGRAM = """#!{python}
import json, os, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
{first}
open("{pids}", "a").write(f"{{os.getpid()}}\\n")
words = dict(a.lstrip("-").split("=") for a in sys.argv[1:] if "=" in a)

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({{"data": [{{"id": sys.argv[2], "owned_by": "vllm"}}]}})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if b"crash" in body:
            self.server.socket.close()
            self.connection.shutdown(2)
            time.sleep(0.3)
            os._exit(1)
        self.answer({{"text": " ".join(sys.argv[1:])}})

    def answer(self, content):
        allowed = self.headers["authorization"] == "Bearer " + os.environ["VLLM_API_KEY"]
        self.send_response(200 if allowed else 401)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_):
        pass

host = sys.argv[sys.argv.index("--host") + 1]
HTTPServer((host, int(words["port"])), Handler).serve_forever()
"""
AUDIO = Utterance(np.zeros(16_000, np.float32))


@pytest.fixture
def command(tmp_path):
    """Writes the program; `first` is run at its start. The path, and the file of its process ids."""

    def write(first=""):
        path, pids = tmp_path / "vllm", tmp_path / "pids"
        path.write_text(PROGRAM.format(python=sys.executable, first=first, pids=pids))
        path.chmod(0o755)
        return path, pids

    return write


@pytest.fixture
def engine_for(built):
    return lambda path: built(replace(SLIM, vllm=str(path)), use_vllm=True, model_id="owner/model", max_batch=3)


def _end(engine, utterance=AUDIO):
    (end,), _ = ends(engine, utterance)
    return end


def _gone(pid):
    """True if no such process runs; one that nobody waits for has ended too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except OSError:
        return True


@pytest.mark.slow("starts processes and waits for them")
def test_it_runs_while_the_model_is_loaded_and_again_after_a_crash(command, engine_for):
    """The child has a secret key, and a port that no connection can get before it listens."""
    path, pids = command("time.sleep(1)")
    engine = engine_for(path)
    engine.load()
    arguments, port = _end(engine).value.text.split(" --port=")
    first, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert arguments == "serve owner/model --max-num-seqs=3 --host 127.0.0.1"
    assert 1024 < int(port) < first
    assert isinstance(_end(engine, Utterance(AUDIO.audio, context="crash")).error, ModelUnavailable)
    assert not engine.loaded
    engine.load()
    assert isinstance(_end(engine), RowDone)
    _, pid = pids.read_text().split()
    assert not _gone(pid)
    engine.unload()
    assert _gone(pid)
    assert not engine.loaded


@pytest.mark.parametrize(
    ("first", "word"),
    [
        ('print("x"); sys.exit("ValueError: no memory for the model")', "ValueError: no memory for the model"),
        ("sys.exit(3)", "ended with code 3"),
        (None, "ended with code"),
    ],
)
def test_why_it_did_not_start_is_told(command, engine_for, tmp_path, first, word):
    """The error has the last line of its output that names an error. The file may be gone since the start."""
    path = tmp_path / "none" if first is None else command(first)[0]
    with pytest.raises(ModelUnavailable, match=word):
        engine_for(path).load()


def test_it_ends_with_this_process(command):
    """However that ends, as by SIGKILL."""
    path, pids = command()
    program = (
        "import time\n"
        "from asr_server.features.remote_engine.vllm import VllmProcess\n"
        f"VllmProcess([{str(path)!r}, 'serve', 'x'])\n"
        "time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program])
    until(lambda: pids.exists() and pids.read_text().strip())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    (pid,) = pids.read_text().split()
    until(lambda: _gone(pid))
