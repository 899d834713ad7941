"""The recordings that are found, and the places of their results."""

from __future__ import annotations

import io
import os
import shutil
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server import demo
from asr_server.cli import recording_files
from asr_server.cli.failure import Failure, UsageError
from asr_server.cli.formats import Format
from asr_server.cli.recording_files import FileSink, RecordingSource, StdoutSink, check_distinct, new_file, targets

RECORDING = demo.sample().recording
FAILURE = Failure("invalid_audio", "No audio.")


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
    found, skipped = recording_files.find([str(folder)], recursive=False)
    assert _names(found, folder) == ["b.wav", "no-suffix"]
    assert {item.path.name: item.reason for item in skipped} == {
        "inner": "a directory; -r searches it",
        "notes.wav": "no audio or video",
        ".dot.wav": "hidden",
        "broken-link.wav": "not a file",
    }


def test_recursion_goes_all_the_way_but_not_into_what_is_hidden(folder):
    """The path below the directory that was named is kept."""
    found, skipped = recording_files.find([str(folder)], recursive=True)
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
    found, skipped = recording_files.find([str(folder)], recursive=True)
    assert "inner/deep/c.wav" not in _names(found, folder)
    reasons = {item.path.name: item.reason for item in skipped}
    assert reasons["around"] == "a link to a directory"
    assert reasons["deep"] == "cannot be read: Permission denied"


def test_what_is_named_is_taken_in_order_and_once(folder):
    """A file that is no recording is taken, too: the server will say so."""
    again = str(folder / "." / "b.wav")
    found, skipped = recording_files.find([str(folder / "notes.wav"), again, str(folder), again], recursive=False)
    assert _names(found, folder) == ["notes.wav", "b.wav", "no-suffix"]
    assert "notes.wav" in {item.path.name for item in skipped}


def test_an_mp3_behind_a_long_tag_is_a_recording(tmp_path):
    """The tag, with a picture in it, is longer than what is looked at."""
    size = 200_000
    tag = b"ID3\x04\x00\x00" + bytes([0, size >> 14 & 127, size >> 7 & 127, size & 127])
    (tmp_path / "song").write_bytes(tag + bytes(size) + (b"\xff\xfb\x90\0" + bytes(413)) * 10)
    found, _ = recording_files.find([str(tmp_path)], recursive=False)
    assert _names(found, tmp_path) == ["song"]


def test_a_name_that_cannot_be_looked_at_is_one_failure(tmp_path):
    """Too long, or in a directory that is closed to this user: the others go on."""
    long = "a" * 300
    (tmp_path / "link.wav").symlink_to(long)
    found, skipped = recording_files.find([long, str(tmp_path)], recursive=False)
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
    (source,), _ = recording_files.find([str(pipe)], recursive=False)
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
        recording_files.find(["-"], recursive=False)


def test_results_of_an_earlier_run_are_not_reported(folder):
    """Files that end as results do; other files are reported."""
    for name in ("b.txt", "b.de.srt", "b.wav.json", "b.rst"):
        (folder / name).write_text("words")
    _, skipped = recording_files.find([str(folder)], recursive=False)
    named = {item.path.name for item in skipped}
    assert {"b.rst", "notes.wav"} <= named
    assert named.isdisjoint({"b.txt", "b.de.srt", "b.wav.json"})


def _source(path):
    return RecordingSource(Path(path), Path(Path(path).name))


A, B, C = (_source(f"{name}.wav") for name in "abc")
TXT = {Format.TEXT: ".txt"}


def _text(text):
    return {Format.TEXT: text}


def _only(chosen):
    """The only file of each source."""
    return {source: path for source, files in chosen.items() for path in files.values()}


@given(st.permutations([A, B, C]), st.sets(st.sampled_from([A, B, C])))
def test_the_order_of_what_is_printed_is_that_of_the_sources(order, failed):
    """However they finish, and whichever fail."""
    out = io.BytesIO()
    printed = StdoutSink([A, B, C], out)
    for source in order:
        if source in failed:
            printed.drop(source, FAILURE)
        else:
            printed.deliver(source, _text(f"text of {source.name}\n"))
    expected = [f"==> {s.name} <==\ntext of {s.name}\n" for s in (A, B, C) if s not in failed]
    assert out.getvalue().decode() == "\n".join(expected)


def test_the_longest_name_can_be_written(tmp_path):
    """A file's name may have 255 bytes, and the temporary file next to it takes none of them."""
    target = tmp_path / ("x" * 251 + ".txt")
    FileSink({A: _text(target)}).deliver(A, _text("words"))
    assert [path.read_text() for path in tmp_path.iterdir()] == ["words"]


def test_deltas_are_printed_at_once_and_their_line_is_ended():
    """The line is ended also when what follows fails."""
    out = io.BytesIO()
    printed = StdoutSink([A, B], out)
    printed.delta(A, "turn")
    assert out.getvalue().endswith(b"turn")
    printed.drop(A, FAILURE)
    printed.delta(B, "turn")
    printed.delta(B, " on")
    printed.deliver(B, _text("\n"))
    printed.close()
    assert out.getvalue() == b"==> a.wav <==\nturn\n\n==> b.wav <==\nturn on\n"


def test_what_waits_for_a_source_that_never_comes_is_printed_at_the_end():
    """The server is gone; what it did is not."""
    out = io.BytesIO()
    printed = StdoutSink([A, B], out)
    printed.deliver(B, _text("words\n"))
    assert out.getvalue() == b""
    printed.close()
    assert out.getvalue() == b"==> b.wav <==\nwords\n"


def test_a_file_is_named_after_its_recording_and_format():
    """The file is next to the recording, or in a directory."""
    source = _source("in/a.wav")
    assert _only(targets([source], None, TXT)) == {source: Path("in/a.txt")}
    assert _only(targets([source], Path("out"), {Format.SRT: ".de.srt"})) == {source: Path("out/a.de.srt")}
    both = targets([source], None, {Format.SRT: ".srt", Format.TEXT: ".txt"})
    assert both == {source: {Format.SRT: Path("in/a.srt"), Format.TEXT: Path("in/a.txt")}}


def test_recordings_that_differ_in_their_suffix_keep_it():
    """Two transcripts are two files."""
    chosen = targets([_source("x/a.wav"), _source("x/a.mp3"), _source("x/b.wav")], None, TXT)
    assert [p.name for p in _only(chosen).values()] == ["a.wav.txt", "a.mp3.txt", "b.txt"]


def test_two_recordings_of_one_name_do_not_share_a_file():
    """The recordings come from two directories into one; the one that would be lost is named."""
    with pytest.raises(UsageError, match=r"a\.wav\.txt"):
        targets([_source("x/a.wav"), _source("y/a.wav")], Path("out"), TXT)


def test_a_recording_is_never_a_target(tmp_path):
    """The recording is no target by its name, and not through a link."""
    recording, link = tmp_path / "talk.txt", tmp_path / "link"
    recording.write_bytes(b"RIFF")
    link.symlink_to(recording)
    with pytest.raises(UsageError, match="overwritten"):
        targets([_source(recording)], None, TXT)
    with pytest.raises(UsageError, match="overwritten"):
        check_distinct({_source(recording): _text(link)})


def test_a_file_that_exists_is_kept_without_force(tmp_path):
    """The command fails before any work, and also when the file came while the work was done."""
    target = tmp_path / "a.txt"
    filed = FileSink({A: _text(target)})
    assert not filed.is_done(A)
    target.write_text("mine")
    for step in (lambda: filed.is_done(A), lambda: filed.deliver(A, _text("theirs\n"))):
        with pytest.raises(Failure) as failure:
            step()
        assert failure.value.code == "output_exists"
    assert target.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(("source", "skip"), [(A, True), (replace(A, listed=True), False)], ids=["asked for", "listed"])
def test_what_exists_is_skipped_and_what_is_missing_is_made(tmp_path, source, skip):
    """A second run does what the first did not, where that is asked for, and in a directory."""
    files = {Format.TEXT: tmp_path / "a.txt", Format.SRT: tmp_path / "a.srt"}
    filed = FileSink({source: files}, skip=skip)
    files[Format.TEXT].write_text("mine")
    assert not filed.is_done(source)
    filed.deliver(source, {Format.TEXT: "theirs\n", Format.SRT: "cues\n"})
    assert [path.read_text() for path in files.values()] == ["mine", "cues\n"]
    assert filed.is_done(source)
    FileSink({source: files}, replace=True).is_done(source)


def test_force_replaces_what_a_link_leads_to(tmp_path):
    """The link stays one."""
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    link.symlink_to(real)
    filed = FileSink({A: _text(link)}, replace=True)
    assert not filed.is_done(A)
    filed.deliver(A, _text("new\n"))
    assert link.is_symlink()
    assert real.read_text() == "new\n"


def test_a_new_file_has_the_rights_of_any_new_file(tmp_path):
    """The rights are not those of a temporary file."""
    FileSink({A: _text(tmp_path / "deep" / "a.txt")}).is_done(A)
    FileSink({A: _text(tmp_path / "deep" / "a.txt")}).deliver(A, _text("x\n"))
    (tmp_path / "plain").write_text("")
    assert (tmp_path / "deep" / "a.txt").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_file_that_came_meanwhile_is_kept(tmp_path):
    """Nothing else is left in the directory."""
    target = tmp_path / "a.txt"

    def write():
        with new_file(target, replace=False) as file:
            file.write(b"mine")
            target.write_text("of others")

    with pytest.raises(Failure, match="exists"):
        write()
    assert [path.read_text() for path in tmp_path.iterdir()] == ["of others"]


@pytest.mark.parametrize("existing", [{}, {"replace": True}, {"skip": True}])
@pytest.mark.parametrize("place", ["pipe", "", "file/a.txt", "a" * 300])
def test_a_place_that_no_file_can_have_fails_before_the_work(tmp_path, place, existing):
    """A device, which `--output /dev/null --force` must not end, a directory, one that would have to be made inside a
    file, and a name that is too long."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("")
    with pytest.raises(Failure):
        FileSink({A: _text(tmp_path / place)}, **existing).is_done(A)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "pipe"]
