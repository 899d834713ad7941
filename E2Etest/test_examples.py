"""Every file under docs/examples/ runs against a real server, and its words come out. What cannot run here is named."""

import json
import os
import re
import shutil
import subprocess
import sys
import wave
from pathlib import Path

import pytest

from asr_server.features.translation.conftest import Answer, ScriptedLlm
from E2Etest.drive import recordings
from E2Etest.wyoming.conftest import bridged
from tools.clients import openai_clients

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
RECORDING = str(recordings.demo.sample().recording)
WORDS = recordings.sample()[1]
# `make clients` runs them: their packages have half a gigabyte each.
COMPILED_ONLY = {"python/livekit_stt.py", "python/pipecat_stt.py"}
# They have tests of their own, since they need another server too.
OF_THEIR_OWN = {"python/wyoming_client.py", "python/speak_answer.py"}
TIMEOUT_S = 100


def _names(pattern):
    return sorted(str(path.relative_to(EXAMPLES)) for path in EXAMPLES.glob(pattern))


@pytest.fixture(scope="module")
def here(start):
    """A server with the fake engine."""
    with start() as server:
        yield server


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """The JavaScript examples where they find `openai` and `ws`, as after `npm install`."""
    place = tmp_path_factory.mktemp("javascript")
    shutil.copytree(EXAMPLES / "javascript", place, dirs_exist_ok=True)
    modules = place / "node_modules"
    modules.mkdir()
    installed = openai_clients.javascript() / "node_modules"
    for package in installed.iterdir():
        (modules / package.name).symlink_to(package)
    # Installed under a name with its version, since there are several.
    newest = next(iter(openai_clients.javascript_packages().values()))
    (modules / "openai").symlink_to(installed / newest)
    return place


def _printed(*command, **environment):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_") and k != "PYTHONPATH"} | environment
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=kept, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


def test_curl(here):
    """Text, cues, deltas and a job: the words each time."""
    printed = _printed(str(EXAMPLES / "curl.sh"), RECORDING, here.base)
    text, cues, stream, job = re.split(r"^== .*\n", printed, flags=re.MULTILINE)[1:]
    assert text.strip() == job.strip() == WORDS
    assert "-->" in cues
    assert WORDS in " ".join(cues.split())
    deltas = re.findall(r'"delta": ?"([^"]*)"', stream)
    assert "".join(deltas) == WORDS


@pytest.mark.slow("runs each example in a process of its own")
@pytest.mark.parametrize("name", [n for n in _names("python/*.py") if n not in COMPILED_ONLY | OF_THEIR_OWN])
def test_python(here, name):
    """The words, on one line at least."""
    printed = _printed(sys.executable, str(EXAMPLES / name), RECORDING, here.base)
    assert WORDS in " ".join(printed.split()), printed


def test_wyoming(here):
    """Through the bridge."""
    with bridged(here.base) as port:
        example = str(EXAMPLES / "python" / "wyoming_client.py")
        assert _printed(sys.executable, example, RECORDING, "127.0.0.1", str(port)).strip() == WORDS


def _pieces(call):
    """What the language model says, as it streams it."""
    deltas = [{"role": "assistant"}, {"content": "It is"}, {"content": " four. And"}, {"content": " that is all."}, {}]
    events = [{"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": d}]} for d in deltas]
    body = "".join(f"data: {line}\n\n" for line in [*map(json.dumps, events), "[DONE]"])
    return Answer(body.encode(), headers={"content-type": "text/event-stream"})


@pytest.mark.slow("runs each example in a process of its own")
def test_speech_of_an_answer(here, tmp_path):
    """Its sentences as they are spoken, and a file with their sound."""
    example, file = str(EXAMPLES / "python" / "speak_answer.py"), tmp_path / "answer.wav"
    with ScriptedLlm(_pieces) as llm:
        language_model = {"OPENAI_BASE_URL": llm.base_url, "OPENAI_API_KEY": "sk-scripted"}
        printed = _printed(sys.executable, example, "Two and two?", str(file), here.base, **language_model)
    assert printed.splitlines() == ["It is four.", "And that is all."]
    with wave.open(str(file)) as audio:
        assert (audio.getframerate(), audio.getnchannels(), audio.getsampwidth()) == (24_000, 1, 2)
        assert audio.getnframes() > 24_000


@pytest.mark.nightly
@pytest.mark.parametrize("name", _names("javascript/*.mjs"))
def test_javascript(here, node, name):
    """The words; of the OpenAI client twice, whole and streamed."""
    printed = _printed("node", str(node / Path(name).name), RECORDING, here.base)
    assert printed.splitlines().count(WORDS) == (2 if "openai" in name else 1), printed


def test_the_list_of_examples_is_whole():
    """docs/examples/README.md names every file, and says of each what the tests do with it."""
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| \[.*?\]\((.*?)\) \|.*\| (.*?) \|$", page, re.MULTILINE))
    assert set(listed) == {n for n in _names("**/*.*") if not n.endswith("README.md")}
    assert {name for name, run in listed.items() if run != "yes"} == COMPILED_ONLY | {"browser/index.html"}
