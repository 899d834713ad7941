"""`asr-server speak --local`, with the scripted engine: where texts come from, where audio goes, what is refused."""

import io
import sys
import wave

import pytest

from asr_server.cli.main import main

SECONDS_PER_CHAR = 0.05  # of the scripted engine


class Input:
    """Standard input: a pipe with these bytes, or a terminal."""

    def __init__(self, content=None):
        self.buffer = io.BytesIO(content or b"")
        self._is_terminal = content is None

    def isatty(self):
        return self._is_terminal


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """An empty directory, no server, a terminal to type on."""
    for name, value in {"MODEL_ID": "fake", "SPEECH": "fake"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", Input())
    return tmp_path


def speak(*arguments):
    return main(["speak", "--local", *arguments])


def duration_s(file):
    with wave.open(str(file)) as found:
        assert (found.getframerate(), found.getnchannels(), found.getsampwidth()) == (24_000, 1, 2)
        return found.getnframes() / 24_000


def test_a_text_a_file_and_a_pipe_are_the_same(place, monkeypatch, capfdbinary):
    """The WAV file states its length; what goes to a pipe cannot, and has the same samples."""
    text = "one two three four five six"
    (place / "text.txt").write_text(text, encoding="utf-8-sig")
    assert speak(text, "-o", "given.wav") == 0
    assert speak("text.txt", "-o", "file.wav") == 0
    monkeypatch.setattr(sys, "stdin", Input(text.encode()))
    assert speak("-") == 0
    given, piped = (place / "given.wav").read_bytes(), capfdbinary.readouterr().out
    assert given == (place / "file.wav").read_bytes()
    assert given[44:] == piped[44:]
    assert duration_s("given.wav") == pytest.approx(len(text) * SECONDS_PER_CHAR, rel=0.1)


@pytest.mark.parametrize(
    ("name", "magic"),
    [("a.mp3", b"\xff"), ("a.ogg", b"OggS"), ("a.OPUS", b"OggS"), ("a.aac", b"\xff\xf1"), ("a.flac", b"fLaC")],
)
def test_the_name_of_the_file_decides_the_format(place, name, magic):
    """The case of letters does not matter."""
    assert speak("Hello.", "-o", name) == 0
    assert (place / name).read_bytes().startswith(magic)


def test_options_have_their_effect(place, capfdbinary):
    """Speed halves the duration; voice, instructions and seed change the samples; the format need not be the name's."""
    text = "a longer text to speak"
    for name, options in {
        "plain": (),
        "fast": ("--speed", "2"),
        "high": ("--voice", "high"),
        "loud": ("--instructions", "Loud."),
        "other": ("--seed", "3"),
    }.items():
        assert speak(text, "-f", "wav", "-o", name, *options) == 0
    assert duration_s("fast") == pytest.approx(duration_s("plain") / 2, rel=0.02)
    contents = {(place / name).read_bytes() for name in ("plain", "high", "loud", "other")}
    assert len(contents) == 4
    assert speak("Hello.", "-f", "pcm") == 0
    assert len(capfdbinary.readouterr().out) % 2 == 0


def test_voices_are_listed(capsys):
    """OpenAI's names with the voices that they stand for, then the engine's own."""
    assert speak("--list-voices") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "alloy       low, a tone of 150 Hz"
    assert lines[-1] == "high        a tone of 600 Hz"


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["text", "-o", "a.doc"], "ends like no format", 2),
        (["text", "-o", "a"], "ends like no format", 2),
        (["-o", "a.mp3"], "there is no text", 2),
        (["-", "-o", "a.mp3"], "there is no text", 2),
        (["missing.txt", "-o", "a.mp3"], "no_such_file: missing.txt", 1),
        (["bytes.txt", "-o", "a.mp3"], "cannot_read: bytes.txt: It is not text", 1),
        (["large.txt", "-o", "a.mp3"], "cannot_read: large.txt: It has more than 8 MiB", 1),
        (["text", "-o", "there.mp3"], "output_exists: there.mp3", 1),
        (["text", "-o", "."], "ends like no format", 2),
        (["text", "-o", "there.mp3/a.mp3"], "cannot_write", 1),
        (["text", "-o", "a.mp3", "--voice", "nobody"], "invalid_value: There is no such voice", 1),
        (["text", "-o", "a.mp3", "-l", "Korean"], "unsupported_language", 1),
        (["...", "-o", "a.mp3"], "invalid_value: The text has nothing to speak", 1),
    ],
)
def test_what_is_wrong_is_said_and_leaves_no_file(place, capsys, arguments, said, code):
    """The error is one line. A file that is there is kept."""
    (place / "bytes.txt").write_bytes(b"\xff\xfe\xfa")
    (place / "large.txt").write_bytes(b"a" * (8 * 2**20 + 1))
    (place / "there.mp3").write_text("mine")
    assert speak(*arguments) == code
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert sorted(path.name for path in place.iterdir()) == ["bytes.txt", "large.txt", "there.mp3"]
    assert (place / "there.mp3").read_text() == "mine"


def test_a_file_is_replaced_only_if_that_is_said(place):
    """Directories of the file are made."""
    (place / "there.mp3").write_text("mine")
    assert speak("Hello.", "-o", "there.mp3", "--force") == 0
    assert (place / "there.mp3").read_bytes()[:1] == b"\xff"
    assert speak("Hello.", "-o", "new/deep/a.mp3") == 0


def test_a_terminal_gets_no_audio(monkeypatch, capsys):
    """The error names the two ways out."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert speak("Hello.") == 2
    error = capsys.readouterr().err
    assert "--output speech.mp3" in error
    assert "pipe" in error


def test_settings_with_which_nothing_speaks_are_an_error_of_the_settings(monkeypatch, capsys):
    """The message says which settings."""
    monkeypatch.setenv("SPEECH", "off")
    assert speak("Hello.", "-o", "a.mp3") == 2
    assert "SPEECH=off" in capsys.readouterr().err


def test_an_engine_that_fails_in_the_middle_leaves_no_file(place, monkeypatch, capsys):
    """The exit code is that of a failing server."""
    script = place / "script.json"
    script.write_text('{"speech": {"rules": [{"text": "bad", "fault": "raise", "after_blocks": 1}]}}')
    monkeypatch.setenv("FAKE_ENGINE_SCRIPT", str(script))
    assert speak("All is well. This is bad for you and me.", "-o", "a.mp3") == 1
    assert capsys.readouterr().err.startswith("asr-server speak: speech_failed: ")
    assert [path.name for path in place.iterdir()] == ["script.json"]
