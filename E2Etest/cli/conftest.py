"""A server, and a directory with recordings."""

import shutil

import numpy as np
import pytest

from asr_server import demo
from asr_server_fake.script import FakeScript
from E2Etest.drive import recordings


@pytest.fixture(scope="session")
def cli_server(start):
    """A server with the fake engine, so slow that a command can be stopped in the middle."""
    with start(script=FakeScript(step_s=0.005), MAX_BATCH="1") as server:
        yield server


@pytest.fixture(scope="session")
def words():
    """The words of the bundled recording."""
    return demo.sample().text


@pytest.fixture
def talks(tmp_path):
    """hello.wav, a file that is broken, one that is no recording, and a second recording in a directory within."""
    place = tmp_path / "talks"
    (place / "more").mkdir(parents=True)
    shutil.copy(demo.sample().recording, place / "hello.wav")
    (place / "more" / "again.flac").write_bytes(recordings.encoded("flac", "flac"))
    (place / "broken.wav").write_bytes(b"RIFF\x00\x01\x00\x00WAVEfmt " + b"\xff" * 300)
    (place / "notes.txt").write_text("no recording")
    return place


@pytest.fixture(scope="session")
def long_talk(tmp_path_factory):
    """Four minutes: the bundled recording again and again."""
    path = tmp_path_factory.mktemp("long") / "long.wav"
    path.write_bytes(recordings.wav(np.tile(np.concatenate([recordings.samples(), np.zeros(8_000, np.int16)]), 53)))
    return path
