"""`asr-server speak` with a server: where texts come from, where audio goes, what is refused."""

import json
import wave

import pytest

from E2Etest.cli.commands import on_terminal, run

SECONDS_PER_CHAR = 0.05  # of the scripted engine
SCRIPT = {"speech": {"rules": [{"fault": "raise", "after_blocks": 2, "text": "bad"}]}}


@pytest.fixture(scope="module")
def server(start, tmp_path_factory):
    """Tones, and a key."""
    path = tmp_path_factory.mktemp("script") / "script.json"
    path.write_text(json.dumps(SCRIPT))
    with start(SPEECH="fake", FAKE_ENGINE_SCRIPT=str(path), API_KEYS="sk-speak") as server:
        yield server


@pytest.fixture
def speak(server, tmp_path):
    """A function that runs the command in an empty directory, at a terminal where nobody types."""
    settings = {"ASR_SERVER_URL": server.base, "ASR_API_KEY": "sk-speak"}
    return lambda *arguments, stdin=None, **more: run(
        "speak", *arguments, stdin=stdin, cwd=tmp_path, **(settings | more)
    )


def duration_s(file):
    with wave.open(str(file)) as found:
        assert (found.getframerate(), found.getnchannels(), found.getsampwidth()) == (24_000, 1, 2)
        return found.getnframes() / 24_000


def test_a_text_a_file_and_a_pipe_are_the_same(speak, tmp_path):
    """The WAV file states its length; what goes to a pipe cannot, and has the same samples."""
    text = "one two three four five six"
    (tmp_path / "text.txt").write_text(text, encoding="utf-8-sig")
    assert speak(text, "-o", "given.wav").returncode == 0
    assert speak("text.txt", "-o", "file.wav").returncode == 0
    piped = speak("-", stdin=text.encode())
    given = (tmp_path / "given.wav").read_bytes()
    assert given == (tmp_path / "file.wav").read_bytes()
    assert given[44:] == piped.stdout[44:]
    assert duration_s(tmp_path / "given.wav") == pytest.approx(len(text) * SECONDS_PER_CHAR, rel=0.1)


def test_every_option_is_sent(speak, server, tmp_path):
    """The file has the bytes of the route's answer. The name of the file decides the format, unless it is stated."""
    options = {"voice": "nova", "speed": 1.5, "language": "de", "instructions": "Loud.", "seed": 4}
    given = [part for name, value in options.items() for part in (f"--{name}", value)]
    for file, stated, kind in (("a.flac", ["-f", "mp3"], "mp3"), ("a.OPUS", [], "opus")):
        done = speak("Guten Tag.", *stated, "-o", file, *given)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        body = {"input": "Guten Tag.", "response_format": kind, **options}
        assert (tmp_path / file).read_bytes() == server.client.post("/v1/audio/speech", json=body).content


def test_voices_are_listed(speak):
    """OpenAI's names with the voices that they stand for, then the engine's own."""
    lines = speak("--list-voices").stdout.splitlines()
    assert lines[0] == "alloy       low, a tone of 150 Hz"
    assert lines[-1] == "high        a tone of 600 Hz"


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["text", "-o", "a.doc"], "ends like no format", 2),
        (["-o", "a.mp3"], "there is no text", 2),
        (["missing.txt", "-o", "a.mp3"], "no_such_file: missing.txt", 1),
        (["bytes.txt", "-o", "a.mp3"], "cannot_read: bytes.txt: It is not text", 1),
        (["large.txt", "-o", "a.mp3"], "cannot_read: large.txt: It has more than 8 MiB", 1),
        (["text", "-o", "there.mp3"], "output_exists: there.mp3", 1),
        (["text", "-o", "there.mp3/a.mp3"], "cannot_write", 1),
        (["text", "-o", "a.mp3", "--voice", "nobody"], "invalid_value: There is no such voice", 1),
        (["text", "-o", "a.mp3", "-l", "Korean"], "unsupported_language", 1),
        (["...", "-o", "a.mp3"], "invalid_value: The text has nothing to speak", 1),
        (["Good so far. " + "This is bad. " * 9, "-o", "a.wav"], "connection_lost", 1),
        (["text", "-o", "a.mp3", "--server", ":1"], "--local", 3),
    ],
)
def test_what_is_wrong_is_said_and_leaves_no_file(speak, tmp_path, arguments, said, code):
    """The error is one line. A file that is there is kept."""
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\xfa")
    (tmp_path / "large.txt").write_bytes(b"a" * (8 * 2**20 + 1))
    (tmp_path / "there.mp3").write_text("mine")
    done = speak(*arguments)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1)
    assert said in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bytes.txt", "large.txt", "there.mp3"]
    assert (tmp_path / "there.mp3").read_text() == "mine"


def test_a_missing_key_is_said_with_the_ways_to_give_one(speak):
    """The error names the variable and the option."""
    done = speak("Hello.", "-o", "a.mp3", ASR_API_KEY="")
    assert (done.returncode, done.stderr.split(":")[1]) == (1, " missing_api_key")
    assert "ASR_API_KEY or --api-key-file" in done.stderr


def test_a_file_is_replaced_only_if_that_is_said(speak, tmp_path):
    """The command creates the directories of the file."""
    (tmp_path / "there.mp3").write_text("mine")
    assert speak("Hello.", "-o", "there.mp3", "--force").returncode == 0
    assert (tmp_path / "there.mp3").read_bytes()[:1] == b"\xff"
    assert speak("Hello.", "-o", "new/deep/a.mp3").returncode == 0


@pytest.mark.nightly
def test_a_terminal_gets_no_audio(server):
    """Nothing is asked of the server."""
    code, shown = on_terminal("speak", "Hello.", "--server", server.base, ASR_API_KEY="sk-speak")
    assert (code, "--output speech.mp3, or pipe it" in shown) == (2, True)
