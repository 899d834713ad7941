"""`asr-server evaluate` on the bundled recordings, with the demonstration model."""

import json
import shutil

import pytest

from asr_server import demo
from asr_server_fake.script import FakeScript, Rule
from E2Etest.cli.commands import run

pytestmark = pytest.mark.integration

RIGHT, WRONG = "turn the lights off", "nobody said this again"


def test_two_servers_are_compared_on_the_same_recordings(start, tmp_path):
    """One server writes what was said, the other does not. A recording that cannot be read does not end the run."""
    (tmp_path / "en").mkdir()
    for number in range(10):
        shutil.copy(demo.sample().recording, tmp_path / "en" / f"{number}.wav")
        # Not the same difference in each, which would have no interval.
        (tmp_path / "en" / f"{number}.txt").write_text(RIGHT + " again" * (number % 2))
    (tmp_path / "broken.wav").write_bytes(b"RIFF\x00\x01\x00\x00WAVEfmt " + b"\xff" * 300)
    (tmp_path / "broken.txt").write_text("words")
    files, options = [tmp_path / "other.json", tmp_path / "both.json"], ["--folders", "language", "--html"]
    for text, file, compared in ((WRONG, files[0], []), (RIGHT, files[1], ["--compare", files[0]])):
        with start(script=FakeScript(rules=(Rule(text=text),))) as server:
            page = file.with_suffix(".html")
            done = run("evaluate", tmp_path, "--server", server.base, "--json", file, *options, page, *compared)
            assert done.returncode == 1
            assert "broken.wav: invalid_audio:" in done.stderr
    found = json.loads(files[1].read_text())
    assert found["failed"] == {"broken.wav": "invalid_audio"}
    assert {one["language"] for one in found["recordings"]} == {"English"}
    assert page.read_text().count('"passages": ') == sum(bool(one["errors"]) for one in found["recordings"]) == 5
    assert found["comparison"]["verdict"].startswith("This one is better by")
    assert found["comparison"]["verdict"] in done.stdout
