"""The page's files against the server that they speak to, and the scripts' own tests."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from asr_server import web
from asr_server.core.transcript import CoverageKind, UnheardReason
from asr_server.features.speakers import live_labels, session_speakers
from asr_server.features.speech_output import route as speech
from asr_server.features.speech_output.encoding.formats import SpeechFormat
from asr_server.live import route
from asr_server.live.actions import ClientAction
from asr_server.net import errors
from asr_server.net.errors import TABLE
from asr_server.ops.schemas import HealthBody, LimitsBody, OptionBody, QueueBody
from asr_server.recordings import route as recordings_route
from asr_server.text import languages

FOLDER = Path(web.__file__).parent
# What people wrote here: neither pictures nor type, nor the files of others.
FILES = {
    name: path.read_text(encoding="utf-8")
    for name, path in web.files().items()
    if path.suffix in {".html", ".css", ".js", ".svg", ".json"} and not name.startswith("vendor/")
}
SCRIPTS = {name: text for name, text in FILES.items() if name.endswith(".js")}
MESSAGES = {name: json.loads(text) for name, text in FILES.items() if name.startswith("messages/")}
# Names of XML, which nobody asks for.
NAMESPACES = r"http://(www\.w3\.org/2000/svg|schemas\.openxmlformats\.org)"


def _source(*modules):
    return "".join(Path(module.__file__).read_text(encoding="utf-8") for module in modules)


def _keys(script, table):
    body = re.search(rf"{table} = {{(.*?)\n}}", SCRIPTS[script], re.DOTALL)[1]
    return set(re.findall(r"^  (\w+):", body, re.MULTILINE))


def _used(script, *names):
    code = re.sub(r"^(import|//).*$", "", SCRIPTS[script], flags=re.MULTILINE)
    return {field for name in names for field in re.findall(rf"\b{name}\.(\w+)", code)}


def _script_tests():
    """Yield the scripts' tests in groups for one Node each. A script that replaces global objects has its own group."""
    together = []
    for path in sorted(FOLDER.glob("*_test.mjs")):
        if re.search(r"^(Object\.assign\(globalThis|globalThis\.)", path.read_text(), re.MULTILINE):
            yield pytest.param([path], id=path.stem)
        else:
            together.append(path)
    yield pytest.param(together, id="others")


@pytest.mark.slow("starts Node, which loads every script")
@pytest.mark.parametrize("paths", _script_tests())
def test_the_scripts_own_tests_pass(paths):
    """Node runs the tests beside the scripts; without Node they fail, since passing would say that they ran."""
    node = shutil.which("node")
    assert node, "The tests of the page's scripts need Node 18 or later: apt-get install -y nodejs"
    # Without `--test`, which starts another Node for each file.
    command = [node, "--test-reporter=tap", "--input-type=module", "--eval"]
    command += ["for (const path of process.argv.slice(1)) await import(path)", *(path.as_uri() for path in paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^# pass [1-9]", done.stdout, re.MULTILINE), done.stdout


def test_the_page_names_no_other_host_and_nothing_inline():
    """The policy that it is served with would stop it; better it does not try."""
    for name, text in FILES.items():
        assert re.findall(r"(?:https?:)?//[\w-]+\.[\w.]+", re.sub(NAMESPACES, "", text)) == [], name
    inline = r"<style|\sstyle=|\son\w+=|javascript:|<script(?![^>]*\ssrc=)"
    assert re.findall(inline, FILES["index.html"]) == []
    made_of_text = r"eval\(|new Function|innerHTML|insertAdjacentHTML|document\.write"
    assert re.findall(made_of_text, "".join(SCRIPTS.values())) == []


def test_every_message_exists():
    english = MESSAGES["messages/en.json"]
    known = {f"{section}.{name}" for section, texts in english.items() for name in texts}
    written = re.sub("^ *//.*$", "", "".join(SCRIPTS.values()), flags=re.MULTILINE) + FILES["index.html"]
    named = set(re.findall(rf'["`]((?:{"|".join(english)})\.\w+)["`]', written))
    assert named
    assert named - known == set()


def _found(pattern, text, flags=0):
    return set(re.findall(pattern, text, flags))


def _read_of_the_server():
    """Yield what the page reads or sends, and all that the server, or a script itself, writes or knows."""
    scripts = "".join(SCRIPTS.values())
    own = _found(r'new Problem\("(\w+)"', scripts) | _found(r'"(storage_\w+)"', SCRIPTS["store.js"])
    own |= _found(r'"(\w+)"', re.search(r"ERROR_CODES = {.*?}", SCRIPTS["microphone.js"], re.DOTALL)[0])
    codes = set(MESSAGES["messages/en.json"]["errors"])
    yield "error codes", codes, {*TABLE, *own, "cut", "unreachable", "unauthorized"}
    # 1000 is the client's own.
    closes = set(map(int, _keys("live-connection.js", "AFTER_CLOSE")))
    yield "close codes", closes, {wire.ws_close for wire in TABLE.values()}
    sent = _found(r'"(\w+)"', _source(route, errors, live_labels, session_speakers))
    messages = _used("live-connection.js", "message") | _used("live-socket.js", "message")
    yield "live messages", messages, sent | {"error", "message"}
    yield "live statuses", _found(r'(?:status|type) === "(\w+)"', SCRIPTS["live-socket.js"]), sent
    actions = set(get_args(ClientAction.model_fields["action"].annotation))
    yield "live actions", _found(r'"?action"?: ?"(\w+)"', SCRIPTS["live-socket.js"]), actions
    events = _used("upload.js", "event", "whole") - {"error", "lengthComputable", "loaded", "total"}
    yield "events of a file", events, _found(r'"(\w+)":', _source(recordings_route))
    yield "events of speech", _used("speech-player.js", "event"), _found(r'"(\w+)":', _source(speech))
    select = re.search(r'id="speak-format">(.*?)</select>', FILES["index.html"])[1]
    yield "formats of speech", _found(r"<option>(\w+)<", select), set(SpeechFormat)
    yield "limits", _found(r"limits\.(\w+)", SCRIPTS["speech.js"]), set(LimitsBody.model_fields)
    shown = _used("status.js", "h", "health")
    shown = shown.union(*(_used(f"{name}.js", "health") for name in ("health", "live-model", "files", "transcription")))
    yield "health", shown, set(HealthBody.model_fields)
    yield "queue", _used("status.js", "q"), set(QueueBody.model_fields)


@pytest.mark.parametrize(("used", "known"), [pytest.param(*sets, id=name) for name, *sets in _read_of_the_server()])
def test_what_the_page_reads_is_the_servers(used, known):
    assert used
    assert used - known == set()


def test_every_state_of_the_server_has_a_word():
    """Each kind of coverage, each reason for which a part is unheard, each state and each field of an option."""
    assert _keys("coverage.js", "LABELS") - {"connection"} == {*CoverageKind, *UnheardReason}
    (option,) = re.findall(r"function option\({ (.*?) }\)", SCRIPTS["status.js"])
    assert set(option.split(", ")) == set(OptionBody.model_fields)
    for table, field in (("STATUS", "status"), ("MODEL", "model_state")):
        (body,) = re.findall(rf"const {table} = {{(.*?)}};", SCRIPTS["status.js"], re.DOTALL)
        assert _found(r"(\w+):", body) == set(get_args(HealthBody.model_fields[field].annotation))


def test_the_languages_are_the_models():
    found = dict(re.findall(r'^  (\w+): "(\w+)",$', SCRIPTS["languages.js"], re.MULTILINE))
    assert found == {languages.code(name): name for name in languages.model_languages()}
