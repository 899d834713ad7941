"""`asr-server align`, with a server and without one."""

import json

import pytest

from E2Etest.cli.commands import run

pytestmark = pytest.mark.integration


@pytest.fixture
def text(talks, words):
    """The words of hello.wav in two lines."""
    path = talks / "hello.txt"
    path.write_text(words.capitalize().replace(" and ", "\nand ") + ".\n")
    return path


def test_a_text_in_a_file_is_aligned_into_a_file(cli_server, talks, text):
    """The name of the file says the format, here subtitles with a cue for each line."""
    arguments = [talks / "hello.wav", text, "-o", talks / "new" / "hello.srt", "--quiet"]
    done = run("align", *arguments, "--server", cli_server.base)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    numbers = (talks / "new" / "hello.srt").read_text().splitlines()[::4]
    assert numbers == ["1", "2"]
    again = run("align", *arguments, "--server", cli_server.base)
    assert (again.returncode, again.stderr.split(":")[1]) == (1, " output_exists")


def test_a_recording_or_a_text_may_be_piped_in(cli_server, talks, text, words):
    """Without a file the answer goes to standard output: json, or what is asked for."""
    server = ("--server", cli_server.base)
    body = json.loads(run("align", "-", words, *server, stdin=(talks / "hello.wav").read_bytes()).stdout)
    assert [word["word"] for word in body["words"]] == words.split()
    table = run("align", talks / "hello.wav", "-", "-f", "tsv", *server, stdin=text.read_bytes()).stdout
    assert [row.split("\t")[3] for row in table.splitlines()[1:]] == text.read_text().split()


def test_what_fails_leaves_no_file(cli_server, talks, text):
    """Each with its code: a recording that is none, files that are not there, a text without words."""
    server = ("-o", talks / "a.json", "--server", cli_server.base)
    for recording, given, code in (
        (talks / "broken.wav", text, "invalid_audio"),
        (talks / "gone.wav", text, "no_such_file"),
        (talks / "hello.wav", "gone.txt", "no_such_file"),
        (talks / "hello.wav", "...", "invalid_value"),
    ):
        done = run("align", recording, given, *server)
        assert (done.returncode, done.stdout, done.stderr.split(":")[1]) == (1, "", f" {code}")
    assert not (talks / "a.json").exists()
    assert run("align", talks / "hello.wav", text, "--server", ":1").returncode == 3
    assert run("align", "-", "-").returncode == 2


@pytest.mark.nightly
def test_a_worker_does_the_same(talks, text):
    """The command writes a TextGrid of Praat without a server."""
    target = talks / "hello.TextGrid"
    done = run("align", talks / "hello.wav", text, "-o", target, "--quiet", "--local", "--model", "demo")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    _, words = target.read_text().split('"words"')
    assert [line for line in words.splitlines() if line.startswith('"') and line != '""'][:2] == ['"Hello"', '"turn"']
