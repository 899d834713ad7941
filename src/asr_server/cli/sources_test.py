"""The recordings that a command line means."""

import io
import os
import shutil
import sys
import threading

import pytest

from asr_server import demo
from asr_server.cli import sources
from asr_server.cli.failure import Failure, UsageError, shown

RECORDING = demo.sample().recording


@pytest.fixture
def folder(tmp_path):
    """Recordings by content, whatever their names, and what is none."""
    inner = tmp_path / "inner"
    (inner / "deep").mkdir(parents=True)
    (inner / ".hidden").mkdir()
    for place in (tmp_path / "b.wav", tmp_path / "no-suffix", inner / "a.txt", inner / "deep" / "c.wav"):
        shutil.copy(RECORDING, place)
    shutil.copy(RECORDING, inner / ".hidden" / "d.wav")
    (tmp_path / "notes.wav").write_text("no audio")
    (tmp_path / ".dot.wav").write_bytes(b"")
    (tmp_path / "broken-link.wav").symlink_to("nowhere")
    return tmp_path


def _names(found, root):
    return [str(source.path.relative_to(root)) for source in found]


def test_a_directory_gives_its_recordings_by_content_and_names_the_rest(folder):
    """Suffixes decide nothing; directories within stay out."""
    found, skipped = sources.find([str(folder)], recursive=False)
    assert _names(found, folder) == ["b.wav", "no-suffix"]
    assert {item.path.name: item.reason for item in skipped} == {
        "inner": "a directory; -r searches it",
        "notes.wav": "no audio or video",
        ".dot.wav": "hidden",
        "broken-link.wav": "not a file",
    }


def test_recursion_goes_all_the_way_but_not_into_what_is_hidden(folder):
    """The path below the directory that was named is kept."""
    found, skipped = sources.find([str(folder)], recursive=True)
    assert [str(s.below) for s in found] == ["b.wav", "no-suffix", "inner/a.txt", "inner/deep/c.wav"]
    assert ".hidden" in {item.path.name for item in skipped}


def test_no_directory_is_passed_by_in_silence(folder, monkeypatch):
    """A link to a directory, which may lead in a circle, and one that cannot be read, are named too."""
    (folder / "inner" / "around").symlink_to(folder)
    scan = os.scandir

    def scandir(path):
        if str(path).endswith("deep"):
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found, skipped = sources.find([str(folder)], recursive=True)
    assert "inner/deep/c.wav" not in _names(found, folder)
    reasons = {item.path.name: item.reason for item in skipped}
    assert reasons["around"] == "a link to a directory"
    assert reasons["deep"] == "cannot be read: Permission denied"


def test_what_is_named_is_taken_in_order_and_once(folder):
    """A file that is no recording is taken, too: the server will say so."""
    again = str(folder / "." / "b.wav")
    found, skipped = sources.find([str(folder / "notes.wav"), again, str(folder), again], recursive=False)
    assert _names(found, folder) == ["notes.wav", "b.wav", "no-suffix"]
    assert "notes.wav" in {item.path.name for item in skipped}


def test_an_mp3_behind_a_long_tag_is_a_recording(tmp_path):
    """The tag, with a picture in it, is longer than what is looked at."""
    size = 200_000
    tag = b"ID3\x04\x00\x00" + bytes([0, size >> 14 & 127, size >> 7 & 127, size & 127])
    (tmp_path / "song").write_bytes(tag + b"\0" * 100_000)
    found, _ = sources.find([str(tmp_path)], recursive=False)
    assert _names(found, tmp_path) == ["song"]


def test_a_file_that_is_not_there_fails_when_it_is_opened(tmp_path):
    """The other files go on."""
    (source,), _ = sources.find([str(tmp_path / "none.wav")], recursive=False)
    with pytest.raises(Failure) as failure:
        source.open()
    assert failure.value.code == "no_such_file"


def test_a_name_that_cannot_be_looked_at_is_one_failure(tmp_path):
    """Too long, or in a directory that is closed to this user: the others go on."""
    long = "a" * 300
    (tmp_path / "link.wav").symlink_to(long)
    found, skipped = sources.find([long, str(tmp_path)], recursive=False)
    with pytest.raises(Failure, match="too long") as failure:
        found[0].open()
    assert failure.value.code == "cannot_read"
    assert [item.reason for item in skipped] == ["cannot be read: File name too long"]


def test_a_named_pipe_is_read_to_its_end_and_kept(tmp_path):
    """A request needs a file that can be read again."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"x" * 300_000,))
    writer.start()
    (source,), _ = sources.find([str(pipe)], recursive=False)
    writer.join()
    with source.open() as kept:
        kept.seek(0)
        assert kept.read() == b"x" * 300_000


def test_a_terminal_is_not_read(monkeypatch):
    """The command would wait for somebody to type a WAV file."""

    class Keyboard(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdin", Keyboard())
    with pytest.raises(UsageError, match="nothing is piped in"):
        sources.find(["-"], recursive=False)


def test_names_cannot_steer_a_terminal():
    """Escape sequences and bytes that are no UTF-8 become question marks; other scripts stay."""
    assert shown("a\x1b[2Jb\n\udcff录音.wav") == "a?[2Jb??录音.wav"


def test_results_of_an_earlier_run_are_not_reported(folder):
    """The files next to a recording with its name and an ending of ours are results; other texts are not."""
    for name in ("b.txt", "b.de.srt", "b.wav.json", "c.txt", "b.md"):
        (folder / name).write_text("words")
    _, skipped = sources.find([str(folder)], recursive=False)
    named = {item.path.name for item in skipped}
    assert {"c.txt", "b.md", "notes.wav"} <= named
    assert named.isdisjoint({"b.txt", "b.de.srt", "b.wav.json"})


def test_a_url_is_answered_with_a_pipe():
    """The server fetches nothing, and the command neither; the one who typed it can."""
    with pytest.raises(UsageError) as error:
        sources.find(["HTTPS://a.example/b c.mp3"], recursive=False, command="subtitles")
    assert "curl -L 'HTTPS://a.example/b c.mp3' | asr-server subtitles -" in str(error.value)
