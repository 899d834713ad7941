"""`asr-server speak` with a server."""

import json
import subprocess

import pytest

from E2Etest.cli.commands import COMMAND, command, environment, on_terminal

SCRIPT = {"speech": {"rules": [{"fault": "raise", "after_blocks": 2, "text": "bad"}]}}


@pytest.fixture(scope="module")
def server(start, tmp_path_factory):
    """Tones, and a key."""
    path = tmp_path_factory.mktemp("script") / "script.json"
    path.write_text(json.dumps(SCRIPT))
    with start(SPEECH="fake", FAKE_ENGINE_SCRIPT=str(path), API_KEYS="sk-speak") as server:
        yield server


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


@pytest.mark.nightly
def test_a_reader_that_leaves_ends_the_command(server):
    """With the exit code of a broken pipe, and no traceback."""
    text = "A sentence that goes on for a while. " * 200
    with subprocess.Popen(
        [*COMMAND, "speak", "-", "--server", server.base],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(ASR_API_KEY="sk-speak"),
    ) as process:
        process.stdin.write(text.encode())
        process.stdin.close()
        process.stdout.read(1_000)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141
