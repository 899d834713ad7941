"""docs/use/cli.md: its commands and its Python run as they stand there, against a server on the port that they mean."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from E2Etest.cli.commands import environment
from E2Etest.drive import recordings
from E2Etest.drive.process import ready

pytestmark = pytest.mark.integration

PAGE = (Path(__file__).parents[2] / "docs" / "use" / "cli.md").read_text(encoding="utf-8")
PORT = 8100


def _blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def place(tmp_path_factory, sample):
    """The recordings that the page names."""
    directory = tmp_path_factory.mktemp("docs")
    (directory / "recordings" / "more").mkdir(parents=True)
    for name in ("meeting.wav", "hello.wav", "recordings/one.wav", "recordings/more/two.wav"):
        (directory / name).write_bytes(sample[0])
    for name in ("talk.mp3", "chapter.mp3"):
        (directory / name).write_bytes(recordings.encoded("mp3", "libmp3lame"))
    (directory / "chapter.txt").write_text(sample[1])
    (directory / "notes.txt").write_text("no recording")
    return directory


@pytest.fixture(scope="module")
def default_server(tmp_path_factory):
    """A server where commands look for one when they are given none."""
    with ready(tmp_path_factory.mktemp("docs-server") / "log", port=PORT) as server:
        yield server


@pytest.mark.nightly
@pytest.mark.parametrize("block", _blocks("sh"))
def test_the_commands_of_the_page_work_as_written(default_server, place, block):
    """Each line of a shell block, in order: all exit with 0, and the words come out, printed or written."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    before = set(place.rglob("*"))
    printed = ""
    for line in block.splitlines():
        command, given = ["bash", "-o", "pipefail", "-c", line], environment(PATH=path)
        done = subprocess.run(
            command, cwd=place, env=given, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=110
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        printed += done.stdout
    written = "".join(p.read_text(errors="replace") for p in set(place.rglob("*")) - before if p.is_file())
    assert "failed with" not in printed
    assert recordings.sample()[1] in printed + written or "transcribe" not in block


@pytest.mark.nightly
def test_the_python_of_the_page_works_as_written(default_server, place):
    """Cues, words, and the code of the refusal."""
    (example,) = _blocks("python")
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=place, capture_output=True, text=True, check=True, timeout=110
    )
    assert "-->" in done.stdout
    assert "invalid_audio" in done.stdout
    assert done.stdout.count(recordings.sample()[1]) == 2
