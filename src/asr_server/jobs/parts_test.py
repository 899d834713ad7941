"""The files of a job that speaks, as servers leave them that die."""

import pytest

from asr_server.jobs.parts import JobPart, JobParts

FIRST, SECOND = JobPart("a" * 64, 2), JobPart("b" * 64, 1)


def opened(paths):
    """The parts in the files at these paths."""
    return JobParts(*(path.open("a+b") for path in paths))


@pytest.fixture
def paths(tmp_path):
    """Two finished parts."""
    found = tmp_path / "speech", tmp_path / "spoken-parts"
    with opened(found) as parts:
        parts.write(b"1122")
        parts.finish_part(FIRST.key)
        parts.write(b"33")
        parts.finish_part(SECOND.key)
    return found


def state(paths):
    """What the next server finds, and what is on the disk then."""
    with opened(paths) as parts:
        parts.rewind()
        sound = [b"".join(parts.blocks(part)) for part in parts.finished]
        return list(parts.finished), sound, paths[0].read_bytes()


def test_finished_parts_are_found_again(paths):
    """With their samples, in order."""
    assert state(paths) == ([FIRST, SECOND], [b"1122", b"33"], b"112233")


def test_a_part_that_was_not_finished_is_cut_off(paths):
    """Also half a sample of it."""
    with paths[0].open("ab") as file:
        file.write(b"555")
    assert state(paths) == ([FIRST, SECOND], [b"1122", b"33"], b"112233")


@pytest.mark.parametrize("end", [b"", b"b" * 64 + b" 1", b"\0" * 67, b"b" * 64 + b" x\n"])
def test_a_part_counts_once_its_line_is_whole(paths, end):
    """A line that was written in part is as none."""
    lines = paths[1].read_bytes().splitlines(keepends=True)
    paths[1].write_bytes(lines[0] + end)
    assert state(paths) == ([FIRST], [b"1122"], b"1122")


def test_a_part_whose_samples_are_lost_is_not_finished(paths):
    """A file system that lost power may have the line and not the samples."""
    paths[0].write_bytes(b"11223")
    assert state(paths) == ([FIRST], [b"1122"], b"1122")


def test_parts_that_are_cut_make_room_for_others(paths):
    """From there on."""
    with opened(paths) as parts:
        parts.cut(1)
        parts.write(b"4444")
        parts.finish_part("c" * 64)
    assert state(paths) == ([FIRST, JobPart("c" * 64, 2)], [b"1122", b"4444"], b"11224444")
