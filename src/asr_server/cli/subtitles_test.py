"""Validation of subtitle files."""

from pathlib import Path

import pytest

from asr_server.cli.failure import Failure
from asr_server.cli.subtitles import is_subtitles, violations_of, violations_of_file
from asr_server.subtitle import files
from asr_server.subtitle.cues import Cue, CueConfig

RULES = CueConfig(max_line_columns=20)
GOOD = [Cue(0, 2000, "turn on the lights"), Cue(2200, 4000, "and play music")]


def test_good_cues_have_no_violations():
    assert violations_of(GOOD, RULES) == []


def test_a_violation_has_cue_time_figure_and_limit():
    """The figure has the unit of its rule."""
    for cues, line in [
        ([Cue(3_723_004, 3_725_000, "x" * 21)], "cue 1 at 01:02:03.004: line_width 21 columns (limit 20 columns)"),
        ([GOOD[0], Cue(1500, 3000, "b")], "cue 2 at 00:00:01.500: overlap 500 ms (limit 0 ms)"),
        ([Cue(0, 8000, "b")], "cue 1 at 00:00:00.000: max_duration 8000 ms (limit 7000 ms)"),
        ([Cue(0, 2000, "a\nb\nc")], "cue 1 at 00:00:00.000: lines 3 lines (limit 2 lines)"),
        ([Cue(0, 1000, "z" * 20 + "\n" + "y" * 20)], "cue 1 at 00:00:00.000: reading_speed 200 % (limit 100 %)"),
        ([Cue(0, 2000, "a\n, b")], "cue 1 at 00:00:00.000: line_start in line 2"),
    ]:
        assert line in violations_of(cues, RULES)


@pytest.mark.parametrize(("render", "name"), [(files.render_srt, "a.srt"), (files.render_vtt, "a.VTT")])
def test_a_file_is_read_by_its_name_and_its_lines_named_after_it(tmp_path, render, name):
    """Both formats."""
    path = tmp_path / name
    path.write_text(render([*GOOD, Cue(4000, 5000, "late")]), encoding="utf-8")
    assert is_subtitles(path)
    assert violations_of_file(path, RULES) == [f"{path}: cue 3 at 00:00:04.000: min_gap 0 ms (limit 83 ms)"]


@pytest.mark.parametrize(
    ("content", "code"), [(b"no cues", "no_cues"), (b"\xff\xfe", "cannot_read"), (None, "no_such_file")]
)
def test_a_file_without_cues_is_an_error(tmp_path, content, code):
    """A report without a finding would otherwise say that all is well."""
    path = tmp_path / "a.srt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Failure) as failure:
        violations_of_file(path, RULES)
    assert failure.value.code == code


def test_an_unreadable_time_line_is_a_violation(tmp_path):
    """Players drop its cue: the others being well, nothing else would tell."""
    for times in ["00:00:01,000 -> 00:00:02,000", "00:00:01 --> 00:00:02", "0:01,5-->0:02,5"]:
        path = tmp_path / "a.srt"
        path.write_text(f"1\n{times}\nlost\n\n" + files.render_srt(GOOD), encoding="utf-8")
        assert violations_of_file(path, RULES) == [f"{path}: line 2: times that cannot be read, so no cue"]


def test_hours_without_end_are_no_time(tmp_path):
    """Python makes no number of that many digits."""
    path = tmp_path / "a.srt"
    path.write_text(f"1\n00:00:01,000 --> {'9' * 5000}:00:02,000\nlost\n", encoding="utf-8")
    assert violations_of_file(path, RULES) == [f"{path}: line 2: times that cannot be read, so no cue"]


def test_recordings_and_directories_are_no_subtitles(tmp_path):
    """Such files are transcribed."""
    (tmp_path / "folder.srt").mkdir()
    assert not any(map(is_subtitles, (Path("talk.mp3"), Path("srt"), tmp_path / "folder.srt")))
