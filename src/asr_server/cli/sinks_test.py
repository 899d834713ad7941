"""The places of results."""

import io
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.cli.failure import AlreadyDone, Failure, UsageError
from asr_server.cli.formats import Format
from asr_server.cli.sinks import Existing, FileSink, StdoutSink, check_distinct, targets
from asr_server.cli.sources import Source


def _source(path):
    return Source(Path(path), Path(Path(path).name))


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
            printed.drop(source)
        else:
            printed.deliver(source, _text(f"text of {source.name}\n"))
    expected = [f"==> {s.name} <==\ntext of {s.name}\n" for s in (A, B, C) if s not in failed]
    assert out.getvalue().decode() == "\n".join(expected)


def test_the_longest_name_can_be_written(tmp_path):
    """A file's name may have 255 bytes, and the temporary file next to it takes none of them."""
    target = tmp_path / ("x" * 251 + ".txt")
    FileSink({A: _text(target)}).deliver(A, _text("words"))
    assert [path.read_text() for path in tmp_path.iterdir()] == ["words"]


def test_a_single_source_is_printed_bare():
    """The output can so be piped on."""
    out = io.BytesIO()
    StdoutSink([A], out).deliver(A, _text("words\n"))
    assert out.getvalue() == b"words\n"


def test_deltas_are_printed_at_once_and_their_line_is_ended():
    """The line is ended also when what follows fails."""
    out = io.BytesIO()
    printed = StdoutSink([A, B], out)
    printed.delta(A, "turn")
    assert out.getvalue().endswith(b"turn")
    printed.drop(A)
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
    filed.check(A)
    target.write_text("mine")
    for step in (lambda: filed.check(A), lambda: filed.deliver(A, _text("theirs\n"))):
        with pytest.raises(Failure) as failure:
            step()
        assert failure.value.code == "output_exists"
    assert target.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("source", "existing"), [(A, Existing.KEEP), (replace(A, listed=True), Existing.FAIL)], ids=["asked for", "listed"]
)
def test_what_exists_is_skipped_and_what_is_missing_is_made(tmp_path, source, existing):
    """A second run does what the first did not, where that is asked for, and in a directory."""
    files = {Format.TEXT: tmp_path / "a.txt", Format.SRT: tmp_path / "a.srt"}
    filed = FileSink({source: files}, existing)
    files[Format.TEXT].write_text("mine")
    filed.check(source)
    filed.deliver(source, {Format.TEXT: "theirs\n", Format.SRT: "cues\n"})
    assert [path.read_text() for path in files.values()] == ["mine", "cues\n"]
    with pytest.raises(AlreadyDone):
        filed.check(source)
    FileSink({source: files}, Existing.REPLACE).check(source)


def test_force_replaces_what_a_link_leads_to(tmp_path):
    """The link stays one."""
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    link.symlink_to(real)
    filed = FileSink({A: _text(link)}, Existing.REPLACE)
    filed.check(A)
    filed.deliver(A, _text("new\n"))
    assert link.is_symlink()
    assert real.read_text() == "new\n"


def test_a_new_file_has_the_rights_of_any_new_file(tmp_path):
    """The rights are not those of a temporary file."""
    FileSink({A: _text(tmp_path / "deep" / "a.txt")}).check(A)
    FileSink({A: _text(tmp_path / "deep" / "a.txt")}).deliver(A, _text("x\n"))
    (tmp_path / "plain").write_text("")
    assert (tmp_path / "deep" / "a.txt").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("existing", Existing)
def test_what_is_no_file_is_not_replaced(tmp_path, existing):
    """A device, a directory: `--output /dev/null --force` must not end /dev/null."""
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", tmp_path):
        with pytest.raises(Failure):
            FileSink({A: _text(place)}, existing).check(A)


def test_a_place_that_cannot_be_written_fails_before_the_work(tmp_path):
    """A directory that would have to be made inside a file."""
    (tmp_path / "file").write_text("")
    with pytest.raises(Failure) as failure:
        FileSink({A: _text(tmp_path / "file" / "a.txt")}).check(A)
    assert failure.value.code == "cannot_write"


def test_a_name_that_no_file_can_have_is_a_failure():
    """The others go on."""
    with pytest.raises(Failure, match="too long") as failure:
        FileSink({A: _text(Path("a" * 300))}, Existing.REPLACE).check(A)
    assert failure.value.code == "cannot_write"


def test_where_links_cannot_be_made_nothing_is_replaced_either(tmp_path, monkeypatch):
    """FAT knows no links: the file is moved, but only to a free place."""

    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    filed = FileSink({A: _text(tmp_path / "a.txt")})
    filed.deliver(A, _text("one\n"))
    with pytest.raises(Failure, match="exists"):
        filed.deliver(A, _text("two\n"))
    assert [p.read_text() for p in tmp_path.iterdir()] == ["one\n"]


def test_standard_input_has_no_directory():
    """The text has no directory to be put into."""
    with pytest.raises(UsageError, match="--output"):
        targets([Source(None, Path("stdin"))], None, TXT)
