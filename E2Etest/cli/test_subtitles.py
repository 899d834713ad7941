"""`asr-server subtitles`, jobs, and the check of finished files, with pipes, against a server."""

import re
import signal
from contextlib import ExitStack

import pytest

from E2Etest.cli.commands import command, on_terminal, started
from E2Etest.drive.process import ServerProcess

pytestmark = pytest.mark.integration

ESTIMATED = "its times are estimated"
JOB = re.compile(r"/v1/jobs/(job_[\w-]+)/result")


def _subtitles(server, *arguments, **more):
    return command("subtitles", "--server", server.base, *arguments, **more)


def _over_http(server, audio, **fields):
    return server.client.post("/v1/audio/subtitles", files={"file": ("a.wav", audio)}, data=fields)


@pytest.mark.slow("runs the command in a process of its own")
@pytest.mark.parametrize("kind", ["srt", pytest.param("vtt", marks=pytest.mark.nightly)])
def test_a_file_is_made_beside_the_recording(cli_server, talks, sample, kind):
    """What the route answers, byte for byte; a second run keeps it."""
    done = _subtitles(cli_server, talks / "hello.wav", "--format", kind, "--mode", "fast")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    written = (talks / f"hello.{kind}").read_text()
    assert written == _over_http(cli_server, sample[0], format=kind, mode="fast").text
    again = _subtitles(cli_server, talks / "hello.wav", "--format", kind)
    assert (again.returncode, "output_exists" in again.stderr) == (1, True)


def test_the_layout_is_kept(cli_server, talks, words):
    """No line is wider, no cue has more lines, and no word is lost."""
    done = _subtitles(cli_server, talks / "hello.wav", "--max-line-chars", 12, "--max-lines", 1, "--output", "-")
    assert done.returncode == 0
    lines = [line for line in done.stdout.splitlines() if line and not line.isdigit() and "-->" not in line]
    assert " ".join(lines) == words
    assert max(map(len, lines)) <= 12
    assert len(lines) == done.stdout.count("-->") > 1


@pytest.mark.slow("runs the command in a process of its own")
def test_estimated_times_are_reported_where_better_ones_were_asked_for(cli_server, talks, sample):
    """As the server says of them; quiet means quiet."""
    timing = _over_http(cli_server, sample[0]).headers["x-subtitle-timing"]
    done = _subtitles(cli_server, talks / "hello.wav", "--output", "-")
    assert (ESTIMATED in done.stderr) is (timing == "estimated")
    assert _subtitles(cli_server, talks / "hello.wav", "--output", "-", "--quiet").stderr == ""


@pytest.mark.nightly
def test_this_process_makes_the_same_file(server, talks):
    """--local, without a server."""
    arguments = [talks / "hello.wav", "--output", "-", "--quiet", "--max-line-chars", 20]
    alone = command("subtitles", "--local", "--model", "demo", *arguments)
    assert (alone.returncode, alone.stderr) == (0, "")
    assert alone.stdout == _subtitles(server, *arguments).stdout != ""


@pytest.mark.nightly
def test_standard_input_lies_beside_nothing(cli_server, sample):
    """It names where the file is to go."""
    lost = _subtitles(cli_server, "-", stdin=sample[0])
    assert (lost.returncode, "--output -" in lost.stderr) == (2, True)
    assert "-->" in _subtitles(cli_server, "-", "--output", "-", stdin=sample[0]).stdout


@pytest.mark.slow("runs the command in a process of its own")
def test_a_job_makes_the_same_and_leaves_nothing(cli_server, talks, long_talk, tmp_path):
    """The file is that of the route, and the job is gone from the server."""
    direct = _subtitles(cli_server, talks / "hello.wav", "--output", tmp_path / "direct.srt")
    as_job = _subtitles(cli_server, talks / "hello.wav", "--output", tmp_path / "job.srt", "--job")
    assert direct.returncode == as_job.returncode == 0
    assert (tmp_path / "direct.srt").read_text() == (tmp_path / "job.srt").read_text()
    state = cli_server.state
    assert state.is_dir()
    assert [path for path in state.rglob("*") if "job_" in path.name] == []


@pytest.mark.nightly
def test_a_job_that_fails_is_reported_and_leaves_nothing(cli_server, talks):
    """With the code that the route has for it."""
    done = _subtitles(cli_server, talks / "broken.wav", "--job", "--output", "-")
    assert (done.returncode, done.stdout) == (1, "")
    assert "broken.wav: invalid_audio: " in done.stderr


@pytest.mark.nightly
def test_a_job_shows_how_long_it_will_take(cli_server, long_talk):
    """Speed and time left, from its events."""
    code, terminal = on_terminal("transcribe", long_talk, "--job", "--server", cli_server.base)
    assert code == 0
    assert re.search(r"\d+\.\dx  \d+:\d\d left", terminal)


@pytest.mark.nightly
def test_a_job_goes_on_when_it_is_left_and_is_found_again(cli_server, long_talk):
    """Ctrl-C prints the command that fetches the result, server included."""
    process = started("subtitles", long_talk, "--job", "--server", cli_server.base, "--output", "-")
    cli_server.wait_for(lambda health: health["queue"]["running"] > 0)
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=60)
    assert (process.returncode, printed) == (130, "")
    (job,) = JOB.findall(errors)
    assert f"curl {cli_server.base}/v1/jobs/{job}/result\n" in errors
    cli_server.wait_for(lambda health: health["jobs"] == 0, timeout_s=120)
    assert cli_server.client.get(f"/v1/jobs/{job}/result").text.count("-->") > 20
    assert cli_server.client.delete(f"/v1/jobs/{job}").status_code == 200


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(600)  # the model is loaded twice
def test_a_job_is_followed_past_a_restart_of_its_server(tmp_path, long_talk):
    """The server is killed and started again: the command waits, and has the result."""
    settings = {"PRELOAD": "true", "STATE_DIR": str(tmp_path / "state")}
    with ExitStack() as stack:
        server = ServerProcess(tmp_path / "log", **settings)
        stack.callback(server.client.close)
        stack.callback(server.process.wait)
        stack.callback(server.process.kill)
        server.wait_until_live()
        server.wait_for(lambda health: health["model_loaded"], timeout_s=180)
        process = stack.enter_context(
            started("subtitles", long_talk, "--job", "--server", server.base, "--output", "-")
        )
        server.wait_for(lambda health: health["queue"]["audio_held_s"] > 60)
        server.process.kill()
        server.process.wait()
        again = ServerProcess(tmp_path / "again", port=server.port, **settings)
        stack.callback(again.stop)
        printed, errors = process.communicate(timeout=300)
    assert (process.returncode, printed.count("-->") > 50) == (0, True), errors


def test_a_server_that_stays_away_is_no_server(long_talk):
    """Before anything was handed over."""
    done = command("subtitles", long_talk, "--job", "--server", "http://127.0.0.1:9", "--output", "-")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
