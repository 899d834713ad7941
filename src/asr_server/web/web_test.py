"""The page's files against the server that they speak to, its size and colours, and the scripts' own tests."""

import gzip
import hashlib
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
from asr_server.features.speech_output.requests import SpeechRequest
from asr_server.features.speech_output.route import VoiceBody
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
STYLES = {name: text for name, text in FILES.items() if name.endswith(".css")}
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


def test_the_page_is_small():
    """Under 400 KB compressed in all, and no script over 400 lines."""
    assert sum(len(gzip.compress(path.read_bytes())) for path in web.files().values()) < 400_000
    assert {name for name, text in SCRIPTS.items() if text.count("\n") > 400} == set()


def test_a_shared_recording_is_found_under_the_same_names():
    """The manifest, the service worker and the page agree on field and cache."""
    manifest = json.loads((FOLDER / "manifest.webmanifest").read_text(encoding="utf-8"))
    worker, page = SCRIPTS["service-worker.js"], SCRIPTS["shared-files.js"]
    constants = dict(re.findall(r'^const (SHARE\w+) = "(.*?)"', worker, re.MULTILINE))
    (field,) = manifest["share_target"]["params"]["files"]
    assert field["name"] == constants["SHARE_FIELD"]
    assert f'const SHARED = "{constants["SHARED"]}"' in page


def test_the_files_of_others_are_as_they_came():
    """Each is named with its hash and its licence lies beside it."""
    listed = (FOLDER / "vendor/README.md").read_text(encoding="utf-8")
    hashes = dict(re.findall(r"^\| `([\w.-]+)` .*`([0-9a-f]{64})` \|$", listed, re.MULTILINE))
    vendored = {p.name: p for name, p in web.files().items() if name.startswith("vendor/")}
    assert hashes == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in vendored.items()}
    licences = re.findall(r"\]\(([\w.-]+)\)", listed)
    assert licences
    assert all((FOLDER / "vendor" / name).is_file() for name in licences)


def test_the_page_names_no_other_host_and_nothing_inline():
    """The policy that it is served with would stop it; better it does not try."""
    for name, text in FILES.items():
        found = re.findall(r"(?:https?:)?//[\w-]+\.[\w.]+", re.sub(NAMESPACES, "", text))
        assert found == [], name
    index = FILES["index.html"]
    assert re.findall(r"<style|\sstyle=|\son\w+=|javascript:|<script(?![^>]*\ssrc=)", index) == []
    assert (
        re.findall(r"eval\(|new Function|innerHTML|insertAdjacentHTML|document\.write", "".join(SCRIPTS.values())) == []
    )


def test_every_file_is_used_and_exists():
    """What pages, styles and scripts name is there, and what is there is named."""
    pages = ("index.html", "docs.html", "caption-page.html")
    named = {*pages, *re.findall(r'(?:href|src)="web/([^"]+)"', "".join(FILES[page] for page in pages))}
    for text in STYLES.values():
        named |= set(re.findall(r'url\("([^"]+)"\)', text))
    for text in SCRIPTS.values():
        named |= set(re.findall(r'(?:from "\./|import\("\./|fileUrl\(")([\w./-]+)"', text))
    languages_of_the_page = re.search(r"export const LANGUAGES = {(.*?)};", FILES["i18n.js"])[1]
    manifest = (FOLDER / "manifest.webmanifest").read_text(encoding="utf-8")
    named |= set(re.findall(r'"src": "([^"]+)"', manifest))
    named |= {f"messages/{code}.json" for code in re.findall(r"(\w+):", languages_of_the_page)}
    assert named == set(web.files())


def _keys_of(messages):
    return {f"{section}.{name}" for section, texts in messages.items() for name in texts}


def test_every_message_is_used_and_exists():
    """English has each message that a script or the page names, and no other."""
    known = _keys_of(MESSAGES["messages/en.json"])
    sections = "|".join(MESSAGES["messages/en.json"])
    written = re.sub("^ *//.*$", "", "".join(SCRIPTS.values()), flags=re.MULTILINE) + FILES["index.html"]
    named = set(re.findall(rf'["`]((?:{sections})\.\w+)["`]', written))
    assert named - known == set()
    # The one key that is put together: `errors.${code}`. Its codes have a test of their own.
    assert set(re.findall(r"`(\w+\.\w*)\$", written)) == {"errors."}
    assert {key for key in known - named if not key.startswith("errors.")} == set()


def test_the_english_of_the_page_itself_is_the_messages():
    """What is shown before the messages have come is what they say."""
    english = MESSAGES["messages/en.json"]
    index = FILES["index.html"]
    found = re.findall(r'data-t="(\w+)\.(\w+)"[^>]*>([^<]*)<', index)
    found += [
        (section, name, re.search(rf'(?<!-){attribute}="([^"]*)"', tag)[1])
        for tag in re.findall(r"<[^>]*>", index)
        for attribute, section, name in re.findall(r'data-t-([\w-]+)="(\w+)\.(\w+)"', tag)
    ]
    assert found
    assert [(section, name) for section, name, text in found if english[section][name] != text] == []


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
    yield "voices", {"id", "description", "languages"}, set(VoiceBody.model_fields)
    asked = {"voice", "speed", "language", "input", "response_format"}
    yield "requests of speech", asked, set(SpeechRequest.model_fields)
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
    for speaker in range(8):
        for ground in ("paper", "card", "wash"):
            assert _contrast(palette[f"speaker-{speaker}"], palette[ground]) >= 4.5, (speaker, ground)
    assert _contrast(palette["on-accent"], palette["accent"]) >= 4.5
    for part in ("edge", "amber", "accent"):
        for ground in ("paper", "card"):
            assert _contrast(palette[part], palette[ground]) >= 3, (part, ground)
