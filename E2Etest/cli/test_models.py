"""`asr-server models` and `asr-server doctor`."""

import json
import re
import shutil

import pytest

from asr_server import demo
from E2Etest.cli.commands import command, on_terminal, run

pytestmark = pytest.mark.integration


@pytest.fixture
def hub(tmp_path):
    """A hub cache that holds `o/model`, and what makes a command see it, offline: the hub's library reads the
    environment when it is imported, so these commands are processes."""
    repo = tmp_path / "hub" / "models--o--model"
    shutil.copytree(demo.checkpoint_path(), repo / "snapshots" / ("a" * 40))
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("a" * 40)
    return {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}


@pytest.mark.nightly
def test_what_is_here_is_listed_verified_and_removed(hub, talks, words):
    """A model in the cache works by its name until it is removed."""
    listed = command("models", "list", **hub)
    sources = [line.split()[:2] for line in listed.stdout.splitlines()]
    assert sources[:3] == [["demo", "bundled"], ["moonshine-tiny-en", "bundled"], ["o/model", "downloaded"]]
    assert ["Qwen/Qwen3-ASR-0.6B", "downloadable"] in sources[3:]
    assert listed.stdout.count("complete") == 3
    assert "million parameters" in command("models", "verify", "o/model", **hub).stdout
    assert command("models", "download", "o/model", **hub).returncode == 0
    assert command("transcribe", "--local", "--model", "o/model", talks / "hello.wav", **hub).stdout == f"{words}\n"
    removed = command("models", "remove", "o/model", "--yes", **hub)
    assert (removed.returncode, removed.stderr) == (0, "")
    assert "o/model" not in command("models", "list", **hub).stdout


@pytest.mark.nightly
def test_removing_asks_first(hub):
    """Enter means no; without anybody to ask, nothing happens."""
    code, terminal = on_terminal("models", "remove", "o/model", typed=b"\n", **hub)
    assert (code, "[y/N]" in terminal) == (1, True)
    done = command("models", "remove", "o/model", **hub)
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert "o/model" in command("models", "list", **hub).stdout
    assert on_terminal("models", "remove", "o/model", typed=b"y\n", **hub)[0] == 0
    assert "o/model" not in command("models", "list", **hub).stdout


@pytest.mark.slow("runs the command in a process of its own")
def test_a_download_that_cannot_be_is_one_line(hub):
    """The line says that the network is missing."""
    done = command("models", "download", "nobody/nothing", **hub)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "network" in done.stderr


def test_a_damaged_checkpoint_is_told_apart(tmp_path):
    """Weights that were cut short: `verify` finds them, and so does the doctor."""
    directory = tmp_path / "model"
    shutil.copytree(demo.checkpoint_path(), directory)
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    done = run("models", "verify", directory)
    assert done.returncode == 1
    assert "cut short" in done.stderr
    checked = run("doctor", "--quick", MODEL_ID=str(directory))
    assert checked.returncode == 1
    assert re.search("FAIL +model .*cut short", checked.stdout)


@pytest.mark.nightly
def test_the_doctor_tries_the_bundled_model(cli_server):
    """It transcribes the recording, says how fast, finds a port in use, and names every option of the plan."""
    own = {"SPEECH": "espeak", "ENDPOINTING": "pause"}  # as that server
    done = command("doctor", "--all", MODEL_ID="demo", PORT=str(cli_server.port), **own)
    assert done.returncode == 0, done.stdout
    assert "transcribed correctly" in done.stdout
    assert re.search(r"\d+\.\dx real time", done.stdout)
    assert re.search("note +port .*cannot be used", done.stdout)
    for option in cli_server.health()["plan"]:
        assert re.search(f"(ok|off) +{option['name']} .*{re.escape(option['reason'])}", done.stdout)
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("name", ["PORT", "USE_VLLM"])
def test_the_doctor_fails_where_the_server_would_not_start(name):
    """And names the setting."""
    done = run("doctor", "--quick", **{"MODEL_ID": "demo", name: "true"})
    assert done.returncode == 1
    assert name in done.stdout


def test_the_doctor_says_first_what_is_wrong():
    """Then the essentials, and how many findings are left out; as JSON, all of them."""
    wrong = run("doctor", "--quick", MODEL_ID="demo", QUANTIZE="fp8")
    assert wrong.returncode == 1
    assert re.match(r"Problems\n  FAIL plan +QUANTIZE", wrong.stdout)
    shown = run("doctor", "--quick", MODEL_ID="demo", PORT="0").stdout
    listed = json.loads(run("doctor", "--quick", "--json", MODEL_ID="demo", PORT="0").stdout)
    findings = [finding for section in listed.values() if isinstance(section, list) for finding in section]
    assert listed["ok"] is True
    lines = re.findall(r"^  (?:ok|note|off) ", shown, re.MULTILINE)
    assert len(lines) < 10 < len(findings)
    assert f"{len(findings) - len(lines)} more findings: asr-server doctor --all" in shown
