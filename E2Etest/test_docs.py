"""The docs say what the code does: tables, files, and the commands of the README."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import av
import httpx
import pytest

from asr_server import demo, feature_list
from asr_server.app import create_app
from asr_server.cli.main import COMMANDS, EXTRAS
from asr_server.core.settings import Settings
from asr_server.engine.capabilities import Capabilities
from E2Etest.drive.process import ready, until
from tools import docs_tables

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = ROOT / "docs"
# The entries of the log say what was true on their day.
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if DOCS / "log" not in page.parents]
PAGES += [ROOT / "README.md"]
SOURCES = [path for folder in ("src", "extras", "tools/gpu") for path in sorted((ROOT / folder).rglob("*"))]
TESTS = ("_test.py", "conftest.py")
CODE = "".join(p.read_text("utf-8") for p in SOURCES if p.suffix in {".py", ".js"} and not p.name.endswith(TESTS))
# Names of other programs.
ELSEWHERE = {"api_base", "recognize_openai", "beam_size", "rule_files", "af_bella", "lang_code", "runtime_env"}
ELSEWHERE |= {"target_ongoing_requests"}


def _blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("name", docs_tables.TABLES)
def test_the_tables_are_those_of_the_code(name):
    """Settings and errors in the docs are the ones that exist, with their defaults and statuses (else: make docs)."""
    file, table = docs_tables.TABLES[name]
    page = (ROOT / "docs" / file).read_text(encoding="utf-8")
    assert docs_tables.replaced(page, name, table()) == page


def test_the_env_example_names_real_settings_with_their_defaults():
    """Every line of deploy/example.env is a setting; uncommented as it stands, only the model would change."""
    rows = re.findall(r"^# ([A-Z_]+)=(.*)$", (ROOT / "deploy" / "example.env").read_text("utf-8"), re.MULTILINE)
    assert len(rows) > 5
    values = Settings(_env_file=None, **{name.lower(): value for name, value in rows})
    changed = {n for n in Settings.model_fields if getattr(values, n) != Settings.model_fields[n].default}
    assert changed == {"model_id"}


def test_links_of_the_docs_lead_somewhere():
    """Every relative link in README, docs and examples names a file that exists, and a heading that it has."""
    pages = [*PAGES, *ROOT.glob("*.md"), *(ROOT / ".github").glob("*.md")]
    links = {(page, to) for page in pages for to in re.findall(r"\]\(((?!https?:)[^)]+)\)", page.read_text("utf-8"))}
    assert len(links) > 100
    assert [(str(page.relative_to(ROOT)), target) for page, target in links if not _leads(page, target)] == []


def _leads(page, target):
    file, _, anchor = target.partition("#")
    found = page.parent / file if file else page
    if not anchor or not found.exists():
        return found.exists()
    headings = re.findall(r"^#+ (.*)$", found.read_text("utf-8"), re.MULTILINE)
    # As GitHub makes them.
    return anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_index_has_a_line_for_each_page():
    """README leads to the index, which names no page twice."""
    listed = re.findall(r"^- \[[^\]]*\]\(([^)]+)\): ", (DOCS / "README.md").read_text("utf-8"), re.MULTILINE)
    pages = [page.relative_to(DOCS).as_posix() for page in PAGES if DOCS in page.parents]
    assert sorted(name for name in listed if not name.startswith("../")) == sorted(set(pages) - {"README.md"})
    assert "](docs/README.md)" in README


def test_what_the_docs_name_exists():
    """Codes, fields and options in backticks are somewhere in the code."""
    there = ELSEWHERE | set(re.findall(r"\w+", CODE))
    for page in PAGES:
        assert set(re.findall(r"`([a-z]+(?:_[a-z0-9]+)+)`", page.read_text("utf-8"))) <= there, page


def _unnamed(path):
    return re.sub(r"{[^}]*}|\bID\b|\bjob_\w+", "{}", path)


def _routes():
    """Return the paths of the schema, and of the sockets."""
    schema = create_app(Settings(_env_file=None, model_id="fake")).openapi()["paths"]
    return {_unnamed(path) for path in (*schema, *re.findall(r'"(/ws/\w+)"', CODE))}


_STEP = r"(?:/(?:{[^}]*}|[\w.-]*\w))"  # of a path
# What each kind of name looks like in the docs, the names in the code, and others in the docs that look the same.
NAMES = {
    "settings": (
        r"\b([A-Z][A-Z0-9_]*[A-Z0-9])=(?!=)|`([A-Z][A-Z0-9_]*[A-Z0-9])`",
        lambda: {name.upper() for name in Settings.model_fields},
        # Variables of clients, of other servers and of libraries that the code names; of other programs; other words.
        {*re.findall(r'"([A-Z][A-Z0-9_]+)"', CODE)}
        | {"ASR_BIND", "ASR_IMAGE", "ASR_PORT", "FORWARDED_ALLOW_IPS", "NODE_EXTRA_CA_CERTS", "NO_COLOR"}
        | {"HF_ENDPOINT", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN"}
        | {"TMPDIR", "CLIENTS", "IMAGES", "PYTHON", "TORCH_INDEX", "VERIFY", "FEATURE", "MODEL_CARD", "AA", "AN"},
    ),
    "routes": (
        rf"(?<![\w.-])(?:GET|POST|PUT|PATCH|DELETE|WS) ({_STEP}+)|(?<!openai)(/(?:v1|ws){_STEP}+)",
        _routes,
        # Pages, and paths for clients of other servers, which the schema leaves out.
        {*re.findall(r'"(/[\w/-]+)"', CODE), "/v1/audio/speech/voices"},
    ),
    "commands": (r"\basr-server ([a-z]+)\b(?!/)", lambda: {*COMMANDS, *EXTRAS}, set()),
}


@pytest.mark.parametrize("kind", NAMES)
def test_the_docs_name_what_the_code_has_and_nothing_else(kind):
    """In README, docs with their examples, and `deploy`."""
    pattern, in_code, others = NAMES[kind]
    known = in_code()
    files = (path for folder in (DOCS, ROOT / "deploy") for path in folder.rglob("*") if path.suffix != ".webp")
    texts = [path.read_text("utf-8") for path in files if path.is_file() and DOCS / "log" not in path.parents]
    named = {_unnamed("".join(groups)) for groups in re.findall(pattern, "\n".join([README, *texts]))}
    assert (named - known - others, known - named) == (set(), set())


def test_operations_quotes_messages_that_exist():
    """A sentence in backticks is a message of the server, word for word."""
    quoted = re.findall(r"`([A-Z][^`]* [^`]*\.)`", (ROOT / "docs" / "run" / "operations.md").read_text("utf-8"))
    assert quoted
    assert {message for message in quoted if message not in CODE} == set()


def test_every_option_of_the_engine_is_explained():
    """docs/run/engine-options.md has a paragraph for each option of the plan, and for no other."""
    page = (ROOT / "docs" / "run" / "engine-options.md").read_text("utf-8")
    machine = Capabilities(gpu=False, torch_cuda=False)
    options = feature_list.resolve(Settings(_env_file=None), machine, docs_tables.ENGINE_FEATURES).options
    assert set(re.findall(r"\*\*`(\w+)`\*\*", page)) == {option.name for option in options}


def test_the_deployment_page_fits_the_settings():
    """What it sets exists; proxies and units wait and take as much as the server does by default."""
    page = (ROOT / "docs" / "run" / "deployment.md").read_text("utf-8")
    service = (ROOT / "deploy" / "asr-server.service").read_text("utf-8")
    unit = " ".join(re.findall(r"^Environment=(.*)$", service, re.MULTILINE))
    assert {name.lower() for name in re.findall(r"(\w+)=", unit)} - {"hf_home"} <= set(Settings.model_fields)
    upload_mb, timeout_s = (Settings.model_fields[n].default for n in ("max_upload_mb", "request_timeout"))
    (nginx_mb,), (caddy_mb,) = re.findall(r"client_max_body_size (\d+)m;", page), re.findall(r"max_size (\d+)MB", page)
    assert int(nginx_mb) >= upload_mb
    assert int(caddy_mb) * 1e6 >= upload_mb * 1024 * 1024
    assert all(int(seconds) > timeout_s for seconds in re.findall(r"proxy_\w+_timeout (\d+)s;", page))
    (stop_s,) = re.findall(r"TimeoutStopSec=(\d+)", service)
    assert f"stop_grace_period: {stop_s}s" in (ROOT / "docker-compose.yml").read_text("utf-8")


_FENCE = re.compile(r"(?:<!-- not run: ([^>]+) -->\n)?```(?:sh|bash|shell|console)\n(.*?)```", re.DOTALL)
# E2Etest/cli/test_docs.py runs those of docs/use/cli.md; a test below those of the README, without `make`.
ELSEWHERE_RUN = {ROOT / "docs" / "use" / "cli.md", ROOT / "README.md"}
RUN_HERE = [
    (page, text)
    for page in PAGES
    if page not in ELSEWHERE_RUN
    for reason, text in _FENCE.findall(page.read_text("utf-8"))
    if not reason
]


@pytest.mark.nightly
@pytest.mark.integration
def test_the_commands_of_the_docs_work_as_written(tmp_path, sample):
    """Every shell block that says nothing else, in a folder of its own, against a server where the docs mean one."""
    assert len(RUN_HERE) > 1
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with ready(tmp_path / "log", port=8100) as server:
        # The warm-up comes after loading, and a page asks whether the server is ready.
        until(lambda: server.client.get("/readyz").status_code == 200)
        for number, (page, block) in enumerate(RUN_HERE):
            folder = tmp_path / str(number)
            folder.mkdir()
            shutil.copy(demo.sample().recording, folder / "recording.wav")
            command = ["bash", "-eo", "pipefail", "-c", block]
            environment = {**os.environ, "PATH": path}
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, (page, done.stdout, done.stderr)
            assert sample[1] in done.stdout or "recording.wav" not in block


@pytest.mark.slow("runs the commands of a page in a process each")
@pytest.mark.integration
def test_the_readmes_commands_work_as_written(tmp_path):
    """`asr-server demo` stays up; the README's curl lines and its Python example run against it; Ctrl-C ends it."""
    command = [sys.executable, "-m", "asr_server", "demo", "--port", "8100"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as demo:
        try:
            words = ""
            while "Ctrl-C stops it" not in words:
                line = demo.stdout.readline()
                assert line, words
                words += line
            transcript = re.search(r"transcript: +(.*)", words)[1]
            curl, speak = (line for block in _blocks("sh") for line in block.splitlines() if line.startswith("curl"))
            assert transcript in subprocess.check_output(shlex.split(curl), cwd=ROOT, text=True)
            assert "/v1/audio/speech" in words
            subprocess.run(shlex.split(speak), cwd=tmp_path, capture_output=True, check=True)
            with av.open(tmp_path / "dinner.mp3") as file:
                assert sum(frame.samples for frame in file.decode(audio=0)) > 12_000  # half a second
            (example,) = _blocks("python")
            printed = subprocess.check_output([sys.executable, "-c", example], cwd=ROOT, text=True)
            assert printed.strip() == transcript
            assert httpx.get("http://127.0.0.1:8100/docs").status_code == 200
        finally:
            demo.send_signal(signal.SIGINT)
            assert demo.wait(timeout=60) == 0
