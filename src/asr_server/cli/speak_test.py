"""`asr-server speak --local`: a worker speaks. E2Etest/cli/test_speak.py tests the options with a server."""

import wave

import pytest

from asr_server.cli.main import main


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """An empty directory, and the scripted engine."""
    for name, value in {"MODEL_ID": "fake", "SPEECH": "fake"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def speak(*arguments):
    return main(["speak", "--local", *arguments])


@pytest.mark.slow("starts a process that speaks")
def test_a_worker_speaks(place):
    """The WAV file states its length."""
    assert speak("one two three four five six", "-o", "a.wav") == 0
    with wave.open("a.wav") as found:
        assert 24_000 < found.getnframes() < 48_000


def test_settings_with_which_nothing_speaks_are_an_error_of_the_settings(monkeypatch, capsys):
    """The message says which settings."""
    monkeypatch.setenv("SPEECH", "off")
    assert speak("Hello.", "-o", "a.mp3") == 2
    assert "SPEECH=off" in capsys.readouterr().err
