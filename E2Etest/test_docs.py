"""The docs say what the code does: tables, files, and the commands of the README."""

import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from asr_server import __version__
from asr_server.core.settings import Settings
from E2Etest import docs_tables

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("name", docs_tables.TABLES)
def test_the_tables_are_those_of_the_code(name):
    """Settings and errors in the docs are the ones that exist, with their defaults and statuses (else: make docs)."""
    file, table = docs_tables.TABLES[name]
    page = (ROOT / "docs" / file).read_text(encoding="utf-8")
    assert docs_tables.replaced(page, name, table()) == page


def test_the_env_example_names_real_settings_with_their_defaults():
    """Every line of .env.example is a setting; uncommented as it stands, only the model would change."""
    rows = re.findall(r"^# ([A-Z_]+)=(.*)$", (ROOT / ".env.example").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) > 5
    values = Settings(_env_file=None, **{name.lower(): value for name, value in rows})
    changed = {n for n in Settings.model_fields if getattr(values, n) != Settings.model_fields[n].default}
    assert changed == {"model_id"}


def test_the_changelog_has_this_version():
    """The newest version heading is the package's version."""
    headings = re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == __version__


def test_links_of_the_docs_lead_somewhere():
    """Every relative link in README and docs names a file that exists."""
    for page in [ROOT / "README.md", ROOT / "CLAUDE.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_claude_md_is_short():
    """It points, it does not repeat."""
    assert len((ROOT / "CLAUDE.md").read_text(encoding="utf-8").splitlines()) <= 60


def test_make_targets_of_the_docs_exist():
    """Every `make X` that README or CLAUDE.md names is a target."""
    targets = set(re.findall(r"^([a-z0-9]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in ("README.md", "CLAUDE.md"):
        named = re.findall(r"\bmake ([a-z0-9]+)", (ROOT / page).read_text(encoding="utf-8"))
        assert named
        assert set(named) <= targets | {"what"}, page


@pytest.mark.integration
def test_make_demo_once_exits_by_its_words():
    """`make demo ONCE=1` shows said and heard, stops, and its exit code says that the words were right."""
    done = subprocess.run(
        ["make", "demo", "ONCE=1", "PORT=8137"], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said, heard = (re.search(rf"{word}: +(.*)", done.stdout)[1] for word in ("said", "heard"))
    assert said == heard != ""


@pytest.mark.integration
def test_the_readmes_commands_work_as_written():
    """`asr-server demo` stays up; the curl line and the Python example of the README run against it; Ctrl-C ends it."""
    command = [sys.executable, "-m", "asr_server", "demo", "--port", "8100"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as demo:
        try:
            words = _read_until(demo, "Ctrl-C stops it")
            heard = re.search(r"heard: +(.*)", words)[1]
            (curl,) = (line for block in _blocks("sh") for line in block.splitlines() if line.startswith("curl"))
            answer = subprocess.run(shlex.split(curl), cwd=ROOT, capture_output=True, text=True, check=True).stdout
            assert heard in answer
            (example,) = _blocks("python")
            printed = subprocess.run(
                [sys.executable, "-c", example], cwd=ROOT, capture_output=True, text=True, check=True
            ).stdout
            assert printed.strip() == heard
            assert httpx.get("http://127.0.0.1:8100/docs").status_code == 200
        finally:
            demo.send_signal(signal.SIGINT)
            assert demo.wait(timeout=60) == 0


def _read_until(process, marker):
    seen, give_up_s = "", time.monotonic() + 100
    while marker not in seen:
        assert time.monotonic() < give_up_s
        line = process.stdout.readline()
        assert line, seen
        seen += line
    return seen
