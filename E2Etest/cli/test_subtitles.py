"""`asr-server subtitles` and jobs, against a server."""

import pytest

from E2Etest.cli.commands import command, run, started
from E2Etest.drive.process import running

pytestmark = pytest.mark.integration


def _subtitles(server, *arguments, **more):
    return run("subtitles", "--server", server.base, *arguments, **more)


@pytest.mark.parametrize("kind", ["srt", "vtt"])
def test_a_file_is_made_beside_the_recording(cli_server, talks, sample, kind):
    """What the route answers, byte for byte; a second run keeps it."""
    done = _subtitles(cli_server, talks / "hello.wav", "--format", kind, "--mode", "fast")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    written = (talks / f"hello.{kind}").read_text()
    route, fields = "/v1/audio/subtitles", {"format": kind, "mode": "fast"}
    answer = cli_server.client.post(route, files={"file": ("a.wav", sample[0])}, data=fields)
    assert written == answer.text
    again = _subtitles(cli_server, talks / "hello.wav", "--format", kind)
    assert (again.returncode, "output_exists" in again.stderr) == (1, True)


def test_standard_input_lies_beside_nothing(cli_server, sample):
    """It names where the file is to go."""
    lost = command("subtitles", "-", "--server", cli_server.base)
    assert (lost.returncode, "--output -" in lost.stderr) == (2, True)
    assert "-->" in _subtitles(cli_server, "-", "--output", "-", stdin=sample[0]).stdout


def test_a_job_makes_the_same_and_leaves_nothing(cli_server, talks, tmp_path):
    """The file is that of the route, a failure has its code, and the jobs are gone from the server."""
    direct = _subtitles(cli_server, talks / "hello.wav", "--output", tmp_path / "direct.srt")
    as_job = _subtitles(cli_server, talks / "hello.wav", "--output", tmp_path / "job.srt", "--job")
    assert direct.returncode == as_job.returncode == 0
    assert (tmp_path / "direct.srt").read_text() == (tmp_path / "job.srt").read_text()
    failed = _subtitles(cli_server, talks / "broken.wav", "--job", "--output", "-")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "broken.wav: invalid_audio: " in failed.stderr
    state = cli_server.state
    assert state.is_dir()
    assert [path for path in state.rglob("*") if "job_" in path.name] == []


@pytest.mark.nightly
@pytest.mark.slow
def test_a_job_is_followed_past_a_restart_of_its_server(tmp_path, long_talk, fake_sample):
    """The server is killed and started again: the command waits, and has the result."""
    with running(tmp_path / "log", **fake_sample) as server:
        process = started("subtitles", long_talk, "--job", "--server", server.base, "--output", "-")
        server.wait_for(lambda health: health["queue"]["audio_held_s"] > 0)
        server.process.kill()
    with process, running(tmp_path / "again", port=server.port, **fake_sample):
        printed, errors = process.communicate(timeout=60)
    assert (process.returncode, printed.count("-->") > 5) == (0, True), errors
