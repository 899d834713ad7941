"""`asr-server transcribe` against a server."""

import json
import os
import shutil
import signal

import pytest

from asr_server_fake.script import FakeScript
from E2Etest.cli.commands import command, run, started

pytestmark = pytest.mark.integration


def _transcribe(server, *arguments, **more):
    return run("transcribe", "--server", server.base, *arguments, **more)


def test_a_file_is_its_words_on_stdout_and_nothing_else(cli_server, talks, words):
    """Scripts read the words from standard output. A real process also shows what its libraries would write there."""
    done = command("transcribe", "--server", cli_server.base, talks / "hello.wav")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{words}\n", "")


@pytest.mark.parametrize("response_format", ["json", "verbose_json", "vtt"])
def test_a_format_is_what_the_server_answers(cli_server, talks, sample, response_format):
    """The same text as over HTTP, with a newline at the end."""
    over_http = cli_server.transcribe(sample[0], response_format=response_format).text
    done = _transcribe(cli_server, talks / "hello.wav", "--format", response_format)
    assert done.returncode == 0
    assert done.stdout == over_http.removesuffix("\n") + "\n"


def test_several_formats_are_made_of_one_answer(cli_server, talks, words, tmp_path):
    """With the options of Whisper's command; the server is asked once, at an address without a scheme."""
    before = cli_server.log().count("method=POST")
    options = ["-f", "txt,srt", "--output_format", "vtt", "--output_dir", tmp_path / "out"]
    done = run("transcribe", talks / "hello.wav", *options, ASR_SERVER_URL=f"localhost:{cli_server.port}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "out" / "hello.txt").read_text() == f"{words}\n"
    direct = _transcribe(cli_server, talks / "hello.wav", "-o", tmp_path / "direct.srt")
    assert direct.returncode == 0
    cues = (tmp_path / "out" / "hello.srt").read_text()
    assert cues == (tmp_path / "direct.srt").read_text()
    assert (tmp_path / "out" / "hello.vtt").read_text().count("-->") == cues.count("-->")
    assert cli_server.log().count("method=POST") == before + 2


def test_streamed_words_come_before_the_end(cli_server, long_talk):
    """The first words of four minutes are there while the rest is still to do; leaving then is no error of ours."""
    process = started("transcribe", "--server", cli_server.base, long_talk, "--stream")
    assert process.stdout.read(4)
    assert process.poll() is None
    process.stdout.close()
    assert process.wait(timeout=60) == 141
    assert process.stderr.read() == ""
    process.stderr.close()
    cli_server.wait_for(lambda health: health["queue"]["audio_held_s"] == 0)


def test_a_broken_file_among_good_ones_fails_alone(cli_server, talks, words):
    """The others keep their order; one line with the code tells of each failure; the exit code is 1."""
    names = ["hello.wav", "broken.wav", "none.wav", "more/again.flac"]
    done = _transcribe(cli_server, *names, cwd=talks)
    assert done.returncode == 1
    assert done.stdout == f"==> hello.wav <==\n{words}\n\n==> more/again.flac <==\n{words}\n"
    *lines, summary = done.stderr.splitlines()
    assert summary.startswith("asr-server transcribe: 2 done, 2 failed; 0:08 of audio in ")
    lines.sort()
    assert [line.split(": ")[1:3] for line in lines] == [["broken.wav", "invalid_audio"], ["none.wav", "no_such_file"]]


def test_a_directory_is_transcribed_beside_its_recordings(cli_server, talks, words):
    """With -r all the way down; what is left out is named; a second run skips what is there, without --force."""
    (talks / "broken.wav").unlink()
    (talks / "slides.pdf").write_bytes(b"%PDF-1.7")
    first = _transcribe(cli_server, "-r", talks, "--beside", "--format", "srt")
    assert (first.returncode, first.stdout) == (0, "")
    assert "slides.pdf" in first.stderr
    assert "notes.txt" not in first.stderr
    for written in (talks / "hello.srt", talks / "more" / "again.srt"):
        assert words in " ".join(written.read_text().split())
    (talks / "hello.srt").write_text("corrected by hand")
    (talks / "more" / "again.srt").unlink()
    second = _transcribe(cli_server, "-r", talks, "--beside", "--format", "srt")
    assert second.returncode == 0
    assert "1 done, 1 skipped, their files exist" in second.stderr
    assert (talks / "more" / "again.srt").exists()
    assert (talks / "hello.srt").read_text() == "corrected by hand"
    assert _transcribe(cli_server, talks / "hello.wav", "--beside", "--format", "srt", "--force").returncode == 0
    assert words in " ".join((talks / "hello.srt").read_text().split())


def test_standard_input_is_a_recording(cli_server, sample, words, tmp_path):
    """From a pipe, to stdout or a file. An empty one has the server's code."""
    assert _transcribe(cli_server, "-", stdin=sample[0]).stdout == f"{words}\n"
    _transcribe(cli_server, "-", "--output", tmp_path / "out.json", "--format", "json", stdin=sample[0])
    assert json.loads((tmp_path / "out.json").read_text())["text"] == words
    nothing = _transcribe(cli_server, "-")
    assert (nothing.returncode, "empty_file" in nothing.stderr) == (1, True)


def test_names_that_are_no_text_do_no_harm(cli_server, talks, words):
    """Bytes that are no UTF-8, and escape sequences, in the header and in an error."""
    odd = os.fsencode(talks) + b"/\xff\x1b[2J.wav"
    shutil.copy(talks / "hello.wav", odd)
    done = _transcribe(cli_server, os.fsdecode(odd), talks / "broken.wav")
    assert done.returncode == 1
    assert f"/??[2J.wav <==\n{words}\n" in done.stdout


@pytest.mark.nightly
def test_a_server_that_is_full_is_waited_for(start, tmp_path, talks, words):
    """Six recordings at once for a server that holds two: none fails."""
    with start(script=FakeScript(step_s=0.02), MAX_QUEUE_AUDIO_S="8") as server:
        for number in range(6):
            shutil.copy(talks / "hello.wav", tmp_path / f"{number}.wav")
        done = _transcribe(server, *sorted(tmp_path.glob("*.wav")), "--jobs", "6", "--quiet")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.count(words) == 6
        assert "rate_limit_exceeded" in server.log()


def test_without_a_server_it_says_so_and_what_to_do(talks):
    """One line, exit code 3, whatever the number of files."""
    done = run("transcribe", "-r", talks, "--quiet", "--server", "http://127.0.0.1:9")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.count("\n") == 1
    assert "--local" in done.stderr


@pytest.mark.slow("runs the command in a process of its own")
def test_ctrl_c_ends_it_and_frees_the_server(cli_server, long_talk, tmp_path):
    """Exit code 130, no traceback, no half-written file, and nothing is left in the queue or the batch."""
    output = tmp_path / "out.txt"
    process = started("transcribe", "--server", cli_server.base, long_talk, "--output", output)
    cli_server.wait_for(lambda health: health["queue"]["running"] > 0)
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=60)
    assert (process.returncode, printed) == (130, "")
    assert errors == "asr-server transcribe: stopped before a recording was finished, and no file was written.\n"
    assert list(tmp_path.iterdir()) == []
    cli_server.wait_for(lambda health: health["queue"]["running"] == 0 and health["queue"]["audio_held_s"] == 0)
    # A line without the length of the audio is one of a request that had no result.
    assert "audio_s=" not in [line for line in cli_server.log().splitlines() if "method=POST" in line][-1]
