"""Clients as they are in the field: an older Python, JavaScript over TLS, each a whole committed turn."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from asr_server.cli.conftest import tls
from E2Etest.drive import recordings
from E2Etest.drive.process import running
from E2Etest.realtime.session import ADDED, COMMITTED, COMPLETED, DONE, encoded, speech
from tools.clients import openai_clients

pytestmark = [pytest.mark.websocket, pytest.mark.nightly, pytest.mark.integration]

HERE = Path(__file__).parent
GA = ["session.created", "session.updated", COMMITTED, ADDED, DONE, COMPLETED]
NEWEST_PYTHON = openai_clients.OLDER_PYTHON[0]
NEWEST, OLDER = openai_clients.javascript_packages()
GA_UPDATE = {"type": "transcription", "audio": {"input": {"turn_detection": None}}}
TURN = [
    {"type": "session.update", "session": GA_UPDATE},
    {"type": "input_audio_buffer.append", "audio": encoded(speech())},
    {"type": "input_audio_buffer.commit"},
]


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory):
    """A server with a certificate of its own: JavaScript's client speaks TLS only."""
    folder = tmp_path_factory.mktemp("tls")
    with running(folder / "log", **tls(folder)) as server:
        yield server


@pytest.fixture(scope="module")
def said(server):
    """The text that the model recognises offline in the bundled recording."""
    text = server.transcribe(recordings.sample()[0]).json()["text"]
    assert text
    return text


def _played(command, base, script, **environment):
    """Return the record of a driver of a session: events, subprotocol and close."""
    given = json.dumps({"base": f"{base}/v1", "key": "any", "send": TURN, "until": COMPLETED, **script})
    environment = {**os.environ, **environment}
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _check(events, said):
    assert [e["type"] for e in events if not e["type"].endswith("delta")] == GA
    assert "".join(e["delta"] for e in events if e["type"].endswith("delta")) == events[-1]["transcript"]
    assert recordings.word_errors(said.split(), events[-1]["transcript"].split()) <= 1


def test_an_older_python_client(server, said):
    """The newest of the older ones."""
    folder = openai_clients.python(NEWEST_PYTHON)
    script = {"props": {"model": "whisper-1", "extra_query": {"intent": "transcription"}}}
    seen = _played([sys.executable, HERE / "drive.py"], server.base, script, PYTHONPATH=str(folder))
    assert seen["version"] == NEWEST_PYTHON
    _check(seen["events"], said)


def _javascript(server, version, module, **more):
    package = openai_clients.javascript_packages()[version]
    script = {"home": str(openai_clients.javascript()), "package": package, "module": module, **more}
    driver = [openai_clients.program("node"), HERE / "drive.cjs"]
    base = server.base.replace("127.0.0.1", "localhost")
    return _played(driver, base, script, NODE_EXTRA_CA_CERTS=server.certificate)


@pytest.mark.parametrize(
    ("version", "module", "props"),
    [
        (NEWEST, "realtime/ws", {"intent": "transcription"}),
        (NEWEST, "realtime/websocket", {"model": "whisper-1"}),
        (OLDER, "realtime/ws", {"model": "whisper-1"}),
        (OLDER, "realtime/websocket", {"model": "whisper-1"}),
    ],
)
def test_javascript(tls_server, said, version, module, props):
    """Key by header and by subprotocol, with an intent and with a model only; closed in order."""
    seen = _javascript(tls_server, version, module, props=props)
    _check(seen["events"], said)
    assert seen["protocol"] == ("realtime" if module.endswith("websocket") else "")
    assert seen["code"] == 1000


def test_javascript_with_a_wrong_key_in_a_browser(tls_server):
    """Told by an event, then closed for good."""
    props = {"model": "whisper-1"}
    seen = _javascript(tls_server, OLDER, "realtime/websocket", props=props, key="ek_unknown", until="never")
    assert [event["error"]["code"] for event in seen["events"]] == ["invalid_api_key"]
    assert (seen["code"], seen["reason"]) == (3000, "invalid_request_error.invalid_api_key")


def _example(language):
    page = (HERE.parents[1] / "docs" / "use" / "realtime.md").read_text(encoding="utf-8")
    return re.search(rf"```{language}\n(.*?)```", page, re.DOTALL)[1]


def test_the_examples_of_the_docs_print_the_words(server, tls_server, said, tmp_path):
    """Python and JavaScript as docs/use/realtime.md has them, but for the port."""
    (tmp_path / "speech.pcm").write_bytes(speech())
    python = _example("python").replace("127.0.0.1:8100", f"127.0.0.1:{server.port}")
    script = tmp_path / "example.cjs"
    script.write_text(_example("js").replace("localhost:8100", f"localhost:{tls_server.port}"), encoding="utf-8")
    (tmp_path / "node_modules").mkdir()
    package = openai_clients.javascript() / "node_modules" / openai_clients.javascript_packages()[NEWEST]
    (tmp_path / "node_modules" / "openai").symlink_to(package)
    environment = {**os.environ, "NODE_EXTRA_CA_CERTS": tls_server.certificate}
    for command in ([sys.executable, "-c", python], ["node", str(script)]):
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert recordings.word_errors(said.split(), done.stdout.split()) <= 1
