"""The recordings that are found, and the places of their results."""

import io
import os
import shutil
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

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
    (tmp_path / "inner" / "deep").mkdir(parents=True)
    (tmp_path / "inner" / ".hidden").mkdir()
    for name in ("b.wav", "no-suffix", "inner/a.txt", "inner/deep/c.wav", "inner/.hidden/d.wav"):
        shutil.copy(RECORDING, tmp_path / name)
    (tmp_path / "notes.wav").write_text("no audio")
    (tmp_path / ".dot.wav").write_bytes(b"")
    (tmp_path / "broken-link.wav").symlink_to("nowhere")
    return tmp_path


def _names(found):
    return [str(source.below) for source in found]


def test_a_directory_gives_its_recordings_by_content_and_names_the_rest(folder):
    """Suffixes decide nothing; directories within stay out. Files that end as results do are not reported."""
    for name in ("b.txt", "b.de.srt", "b.wav.json", "b.rst"):
        (folder / name).write_text("words")
    found, skipped = recording_files.find([str(folder)], recursive=False)
    assert _names(found) == ["b.wav", "no-suffix"]
    assert {item.path.name: item.reason for item in skipped} == {
        "inner": "a directory; -r searches it",
        "b.rst": "no audio or video",
        "notes.wav": "no audio or video",
        ".dot.wav": "hidden",
        "broken-link.wav": "not a file",
    }


def test_recursion_goes_all_the_way_and_passes_no_directory_by_in_silence(folder, monkeypatch):
    """Hidden directories, links, which may lead in a circle, and what cannot be read are named."""
    (folder / "inner" / "around").symlink_to(folder)
    (folder / "closed").mkdir()
    scan = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: scan(str(path).replace("closed", "gone")))
    found, skipped = recording_files.find([str(folder)], recursive=True)
    assert _names(found) == ["b.wav", "no-suffix", "inner/a.txt", "inner/deep/c.wav"]
    reasons = {item.path.name: item.reason for item in skipped}
    assert (reasons[".hidden"], reasons["around"]) == ("hidden", "a link to a directory")
    assert reasons["gone"] == "cannot be read: No such file or directory"


def test_what_is_named_is_taken_in_order_and_once(folder):
    """A file that is no recording is taken, too: the server will say so."""
    again = str(folder / "." / "b.wav")
    found, skipped = recording_files.find([str(folder / "notes.wav"), again, str(folder), again], recursive=False)
    assert _names(found) == ["notes.wav", "b.wav", "no-suffix"]
    assert "notes.wav" in {item.path.name for item in skipped}


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
    threading.Thread(target=pipe.write_bytes, args=(b"x" * 300_000,)).start()
    (source,), _ = recording_files.find([str(pipe)], recursive=False)
    with source.open() as kept:
        kept.seek(0)
        assert kept.read() == b"x" * 300_000


def test_a_terminal_is_not_read(monkeypatch):
    """The command would wait for somebody to type a WAV file."""
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    with pytest.raises(UsageError, match="nothing is piped in"):
        recording_files.find(["-"], recursive=False)


def _source(path):
    return RecordingSource(Path(path), Path(Path(path).name))


def _text(text):
    return {Format.TEXT: text}


A, B, C = (_source(f"{name}.wav") for name in "abc")
TXT = _text(".txt")


@given(st.permutations([A, B, C]), st.lists(st.sampled_from(["done", "failed", "never comes"]), min_size=3, max_size=3))
def test_the_order_of_what_is_printed_is_that_of_the_sources(order, ends):
    """However they finish, and whichever fail. What waits for a source that never comes is printed at the end."""
    out, end_of = io.BytesIO(), dict(zip(order, ends, strict=True))
    printed = StdoutSink([A, B, C], out)
    for source, end in end_of.items():
        if end == "failed":
            printed.drop(source, FAILURE)
        elif end == "done":
            printed.deliver(source, _text(f"text of {source.name}\n"))
    assert end_of[A] != "never comes" or out.getvalue() == b""
    printed.close()
    expected = [f"==> {s.name} <==\ntext of {s.name}\n" for s in (A, B, C) if end_of[s] == "done"]
    assert out.getvalue().decode() == "\n".join(expected)


def test_deltas_are_printed_at_once_and_their_line_is_ended():
    printed = StdoutSink([A, B], out := io.BytesIO())
    printed.delta(A, "turn")
    assert out.getvalue().endswith(b"turn")
    printed.drop(A, FAILURE)
    printed.delta(B, "turn")
    printed.delta(B, " on")
    printed.deliver(B, _text("\n"))
    printed.close()
    assert out.getvalue() == b"==> a.wav <==\nturn\n\n==> b.wav <==\nturn on\n"


@pytest.mark.parametrize(
    ("sources", "place", "endings", "files"),
    [
        (["in/a.wav"], None, [".txt"], ["in/a.txt"]),
        (["in/a.wav"], "out", [".de.srt"], ["out/a.de.srt"]),
        (["in/a.wav"], None, [".srt", ".txt"], ["in/a.srt", "in/a.txt"]),
        (["x/a.wav", "x/a.mp3", "x/b.wav"], None, [".txt"], ["x/a.wav.txt", "x/a.mp3.txt", "x/b.txt"]),
    ],
)
def test_a_file_is_named_after_its_recording_and_format(sources, place, endings, files):
    """The file is next to the recording, or in a directory. Recordings that differ in their suffix keep it."""
    chosen = targets([*map(_source, sources)], place and Path(place), dict(zip(Format, endings, strict=False)))
    assert [str(path) for each in chosen.values() for path in each.values()] == files


def test_a_recording_is_never_a_target_and_two_share_none(tmp_path):
    """Two names or a link may lead to one file. The error names the file that would be lost."""
    with pytest.raises(UsageError, match=r"a\.wav\.txt"):
        targets([_source("x/a.wav"), _source("y/a.wav")], Path("out"), TXT)
    recording, link = tmp_path / "talk.txt", tmp_path / "link"
    recording.write_bytes(b"RIFF")
    link.symlink_to(recording)
    for target in (recording, link):
        with pytest.raises(UsageError, match="overwritten"):
            check_distinct({_source(recording): _text(target)})


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


def test_force_replaces_what_a_link_leads_to(tmp_path):
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    link.symlink_to(real)
    filed = FileSink({A: _text(link)}, replace=True)
    assert not filed.is_done(A)
    filed.deliver(A, _text("new\n"))
    assert link.is_symlink()
    assert real.read_text() == "new\n"
    loop = tmp_path / "loop.txt"
    loop.symlink_to(loop)
    FileSink({A: _text(loop)}, replace=True).deliver(A, _text("new\n"))
    assert loop.read_text() == "new\n"


def test_a_new_file_has_the_rights_of_any_new_file(tmp_path):
    """Its directory is made. Its name may have 255 bytes: the temporary file next to it takes none of them."""
    target, plain = tmp_path / "deep" / ("x" * 251 + ".txt"), tmp_path / "plain"
    FileSink({A: _text(target)}).deliver(A, _text("words"))
    plain.write_text("")
    assert [path.read_text() for path in target.parent.iterdir()] == ["words"]
    assert target.stat().st_mode == plain.stat().st_mode


def test_a_file_that_came_while_another_was_written_is_kept(tmp_path):
    target = tmp_path / "a.txt"
    with pytest.raises(Failure, match="exists"), new_file(target, replace=False):
        target.write_text("of others")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["of others"]


@pytest.mark.parametrize("existing", [{}, {"replace": True}, {"skip": True}])
@pytest.mark.parametrize("place", ["pipe", "", "file/a.txt", "a" * 300])
def test_a_place_that_no_file_can_have_fails_before_the_work(tmp_path, place, existing):
    """A device, which `--force` must not end, a directory, one inside a file, and a name that is too long."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("")
    with pytest.raises(Failure):
        FileSink({A: _text(tmp_path / place)}, **existing).is_done(A)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "pipe"]
