"""The page's files against the server that they speak to, its size and colours, and the scripts' own tests."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from asr_server import web
from asr_server.api import errors
from asr_server.api.errors import TABLE
from asr_server.api.http import sse
from asr_server.api.http.schemas import HealthBody, OptionBody, QueueBody
from asr_server.api.live import actions as live_actions
from asr_server.api.live import messages, route
from asr_server.text import languages

FILES = {name: path.read_text(encoding="utf-8") for name, path in web.files().items()}
SCRIPTS = {name: text for name, text in FILES.items() if name.endswith(".js")}
FOLDER = next(iter(web.files().values())).parent


def _source(*modules):
    return "".join(Path(module.__file__).read_text(encoding="utf-8") for module in modules)


def _keys(script, table):
    body = re.search(rf"{table} = {{(.*?)\n}}", SCRIPTS[script], re.DOTALL)[1]
    return set(re.findall(r"^  (\w+):", body, re.MULTILINE))


def _used(script, *names):
    code = re.sub(r"^(import|//).*$", "", SCRIPTS[script], flags=re.MULTILINE)
    return {field for name in names for field in re.findall(rf"\b{name}\.(\w+)", code)}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*_test.mjs")), ids=lambda path: path.stem)
def test_the_scripts_own_tests_pass(path):
    """Node runs the tests beside the scripts; without Node they fail, since passing would say that they ran."""
    node = shutil.which("node")
    assert node, "The tests of the page's scripts need Node 18 or later: apt-get install -y nodejs"
    done = subprocess.run([node, "--test", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert re.search(r"^# pass [1-9]", done.stdout, re.MULTILINE), done.stdout


def test_the_page_is_small():
    """Under 200 KB in all, and no script over 300 lines."""
    assert sum(path.stat().st_size for path in web.files().values()) < 200_000
    assert {name for name, text in SCRIPTS.items() if text.count("\n") > 300} == set()


def test_every_script_says_what_it_is():
    """The first line of a script is a comment, as it is a docstring in a module."""
    assert {name for name, text in SCRIPTS.items() if not text.startswith("// ")} == set()


def test_the_page_names_no_other_host_and_nothing_inline():
    """The policy that it is served with would stop it; better it does not try."""
    for name, text in FILES.items():
        found = re.findall(r"(?:https?:)?//[\w-]+\.[\w.]+", text.replace("http://www.w3.org/2000/svg", ""))
        assert found == [], name
    index = FILES["index.html"]
    assert re.findall(r"<style|\sstyle=|\son\w+=|javascript:|<script(?![^>]*\ssrc=)", index) == []
    assert (
        re.findall(r"eval\(|new Function|innerHTML|insertAdjacentHTML|document\.write", "".join(SCRIPTS.values())) == []
    )


def test_only_the_style_is_waited_for():
    """The first paint needs the page and one style; scripts come after it."""
    index = FILES["index.html"]
    assert re.findall(r'<link rel="stylesheet" href="([^"]+)"', index) == ["web/style.css"]
    assert re.findall(r"<script ([^>]*)>", index) == ['type="module" src="web/app.js"']
    assert "@import" not in FILES["style.css"]


def test_every_file_is_used_and_exists():
    """What pages and scripts name is there, and what is there is named."""
    named = {"index.html"} | set(re.findall(r'(?:href|src)="web/([^"]+)"', FILES["index.html"]))
    for text in SCRIPTS.values():
        named |= set(re.findall(r'(?:from "\./|fileUrl\(")([\w.-]+)"', text))
    assert named == set(FILES)


def test_the_error_codes_of_the_page_are_the_servers():
    """A code with words of its own exists; the page's own codes are no server's."""
    assert _keys("messages.js", "SERVER_CODES") <= set(TABLE)
    assert not _keys("messages.js", "PAGE_CODES") & set(TABLE)


def test_the_close_codes_of_the_page_are_the_servers():
    """1000 is the client's own; every other one is in the table of errors."""
    assert {int(code) for code in _keys("live-connection.js", "AFTER_CLOSE")} <= {
        wire.ws_close for wire in TABLE.values()
    }


def test_the_live_messages_of_the_page_are_the_servers():
    """Every field that is read is written by the server, every action that is sent is known to it."""
    sent = set(re.findall(r'"(\w+)"', _source(route, messages, errors)))
    assert _used("live-connection.js", "message") | _used("live-socket.js", "message") <= sent | {"error", "message"}
    actions = set(re.findall(r'"?action"?: ?"(\w+)"', SCRIPTS["live-socket.js"]))
    assert actions
    assert actions <= set(get_args(live_actions.Action.model_fields["action"].annotation))
    assert re.findall(r'status === "(\w+)"', SCRIPTS["live-socket.js"]) == ["connected"]


def test_the_events_of_a_file_are_the_servers():
    """Every field that is read is one that the server writes."""
    sent = set(re.findall(r'"(\w+)":', _source(sse)))
    assert _used("upload.js", "event", "whole") - {"error", "lengthComputable", "loaded", "total"} <= sent


def test_the_health_of_the_page_is_the_servers():
    """Every field that is shown exists, and every state has a word."""
    fields = set(HealthBody.model_fields)
    used = _used("status.js", "h", "health") | _used("health.js", "health") | _used("file.js", "health")
    assert used <= fields
    assert _used("status.js", "q") <= set(QueueBody.model_fields)
    (option,) = re.findall(r"function option\({ (.*?) }\)", SCRIPTS["status.js"])
    assert set(option.split(", ")) == set(OptionBody.model_fields)
    states = set(get_args(HealthBody.model_fields["model_state"].annotation))
    statuses = set(get_args(HealthBody.model_fields["status"].annotation))
    for table, known in (("STATUS", statuses), ("MODEL", states)):
        (line,) = re.findall(rf"const {table} = {{(.*?)}};", SCRIPTS["status.js"])
        assert set(re.findall(r"(\w+):", line)) == known


def test_the_languages_are_the_models():
    """The choice is the server's table, code by code."""
    found = dict(re.findall(r'^  (\w+): "(\w+)",$', SCRIPTS["languages.js"], re.MULTILINE))
    assert found == {languages.code(name): name for name in languages.model_languages()}


def _luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(a, b):
    low, high = sorted((_luminance(a), _luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_colours_can_be_sent_apart(scheme):
    """WCAG 2.2 AA: 4.5 for text on whatever it stands on, 3 for borders and dots."""
    blocks = re.findall(r":root {(.*?)}", FILES["style.css"], re.DOTALL)
    palette = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", blocks[("light", "dark").index(scheme)]))
    for text in ("ink", "soft", "grey", "accent", "red"):
        for ground in ("paper", "card", "wash", "red-wash") if text == "ink" else ("paper", "card", "wash"):
            assert _contrast(palette[text], palette[ground]) >= 4.5, (text, ground)
    assert _contrast(palette["on-accent"], palette["accent"]) >= 4.5
    for part in ("edge", "amber", "accent"):
        for ground in ("paper", "card"):
            assert _contrast(palette[part], palette[ground]) >= 3, (part, ground)
