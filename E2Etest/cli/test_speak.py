"""`asr-server speak` with a server: where texts come from, where audio goes, what is refused."""

import io
import json
import sys
import wave

import pytest

from asr_server.cli.main import main
from E2Etest.cli.commands import command, on_terminal

SECONDS_PER_CHAR = 0.05  # of the scripted engine
SCRIPT = {"speech": {"rules": [{"fault": "raise", "after_blocks": 2, "text": "bad"}]}}


@pytest.fixture(scope="module")
def server(start, tmp_path_factory):
    """Tones, and a key."""
    path = tmp_path_factory.mktemp("script") / "script.json"
    path.write_text(json.dumps(SCRIPT))
    with start(SPEECH="fake", FAKE_ENGINE_SCRIPT=str(path), API_KEYS="sk-speak") as server:
        yield server


class Input:
    """Standard input: a pipe with these bytes, or a terminal."""

    def __init__(self, content=None):
        self.buffer = io.BytesIO(content or b"")
        self._is_terminal = content is None

    def isatty(self):
        return self._is_terminal


@pytest.fixture
def place(server, tmp_path, monkeypatch):
    """An empty directory, a terminal to type on."""
    monkeypatch.setenv("ASR_SERVER_URL", server.base)
    monkeypatch.setenv("ASR_API_KEY", "sk-speak")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", Input())
    return tmp_path


def speak(*arguments):
    return main(["speak", *arguments])


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


def test_voices_are_listed(place, capsys):
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


def test_a_terminal_gets_no_audio(place, monkeypatch, capsys):
    """The error names the two ways out."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert speak("Hello.") == 2
    error = capsys.readouterr().err
    assert "--output speech.mp3" in error
    assert "pipe" in error


def test_a_server_speaks_into_a_file(server, tmp_path):
    """As the route does, with every option."""
    options = {"voice": "nova", "speed": 1.5, "language": "de", "instructions": "Loud.", "seed": 4}
    given = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    done = command(
        *("speak", "Guten Tag.", "-o", "a.mp3", *given, "--server", server.base), cwd=tmp_path, ASR_API_KEY="sk-speak"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    body = {"input": "Guten Tag.", "response_format": "mp3", **options}
    answer = server.client.post("/v1/audio/speech", json=body)
    assert (tmp_path / "a.mp3").read_bytes() == answer.content


@pytest.mark.nightly
def test_what_a_server_says_is_said(server, tmp_path):
    """The voices; a key that is missing; an error of the server, also in the middle; no server."""

    def speak(*arguments, **changes):
        return command("speak", *arguments, cwd=tmp_path, **{"ASR_API_KEY": "sk-speak", **changes})

    listed = speak("--list-voices", "--server", server.base)
    assert (listed.returncode, listed.stdout.splitlines()[0]) == (0, "alloy       low, a tone of 150 Hz")
    keyless = speak("Hello.", "-o", "a.mp3", "--server", server.base, ASR_API_KEY="")
    assert (keyless.returncode, keyless.stderr.split(":")[1]) == (1, " missing_api_key")
    assert "ASR_API_KEY or --api-key-file" in keyless.stderr
    wrong = speak("Hello.", "-o", "a.mp3", "--voice", "nobody", "--server", server.base)
    assert (wrong.returncode, wrong.stderr.split(":")[1]) == (1, " invalid_value")
    broken = speak("Good so far. " + "This is bad. " * 9, "-o", "a.wav", "--server", server.base)
    assert (broken.returncode, broken.stderr.split(":")[1]) == (1, " connection_lost")
    nobody = speak("Hello.", "-o", "a.mp3", "--server", ":1")
    assert nobody.returncode == 3
    assert "--local" in nobody.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly
def test_a_terminal_shows_a_bar_and_gets_no_audio(server, tmp_path):
    """With a file the bar is there while it is made; without one nothing is asked of the server."""
    code, shown = on_terminal("speak", "Hello.", "--server", server.base, ASR_API_KEY="sk-speak")
    assert (code, "--output speech.mp3" in shown) == (2, True)
    target = tmp_path / "a.mp3"
    code, shown = on_terminal("speak", "Hello.", "-o", target, "--server", server.base, ASR_API_KEY="sk-speak")
    assert (code, "speaking" in shown) == (0, True)
    assert target.read_bytes()[:1] == b"\xff"
