"""ASS, TSV and LRC as other people's programs read them."""

import csv
import io

import av
import pysubs2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.subtitle import other_formats
from asr_server.subtitle.conftest import VOCABULARY
from asr_server.subtitle.cues import Cue

JOINER = "\u2060"
TEXTS = [*map(" ".join, VOCABULARY.values()), "two\nlines", r"{\an8}not a command", r"a\Nb", "a,b", "tab\there"]
CUES = [Cue(3_600_000 * i + 2_340, 3_600_000 * i + 4_560, text) for i, text in enumerate(TEXTS)]


def test_another_program_reads_our_ass():
    """Times are in hundredths of a second; every line of a cue is one, and markup in speech is text."""
    read = pysubs2.SSAFile.from_string(other_formats.render_ass(CUES))
    assert [(event.start, event.end) for event in read] == [(cue.start_ms, cue.end_ms) for cue in CUES]
    seen = [e.text.replace("\\N", "\n").replace("\\{", "{").replace("\\}", "}").replace(JOINER, "") for e in read]
    assert seen == ["\n".join(cue.lines) for cue in CUES]


def test_ffmpeg_reads_our_ass():
    """FFmpeg finds as many events as cues."""
    with av.open(io.BytesIO(other_formats.render_ass(CUES).encode()), format="ass") as container:
        assert sum(1 for packet in container.demux() if packet.size) == len(CUES)


def test_tsv_is_whispers():
    """Whole milliseconds, and a text without tabs and line breaks; Chinese lines are joined without a space."""
    rows = list(csv.reader(io.StringIO(other_formats.render_tsv(CUES)), delimiter="\t", quoting=csv.QUOTE_NONE))
    assert rows[0] == ["start", "end", "text"]
    assert [(int(start), int(end)) for start, end, _ in rows[1:]] == [(cue.start_ms, cue.end_ms) for cue in CUES]
    assert [row[2] for row in rows[1:]][-1] == "tab here"
    assert other_formats.render_tsv([Cue(0, 1, "今天\n天气")]).endswith("\t今天天气\n")


@pytest.mark.parametrize(("ms", "written"), [(0, "[00:00.00]"), (59_996, "[01:00.00]"), (6_000_010, "[100:00.01]")])
def test_lrc_has_a_line_for_each_cue(ms, written):
    """Minutes, seconds and hundredths, rounded as one number."""
    assert other_formats.render_lrc([Cue(ms, ms + 1, "two\nlines")]) == f"{written}two lines\n"


@given(st.lists(st.text()))
def test_whatever_is_said_stays_on_its_line(texts):
    """Each cue is one row, whatever characters are in it."""
    cues = [Cue(0, 1, text) for text in texts]
    for written, head in ((other_formats.render_lrc(cues), 0), (other_formats.render_tsv(cues), 1)):
        assert len(written.split("\n")) == len(texts) + head + 1
    assert other_formats.render_ass(cues).count("\nDialogue: ") == len(texts)


def test_speakers_are_names_in_ass_and_text_in_lines():
    """A comma in a name does not end its field; tsv and lrc name a speaker where it changes."""
    cues = [Cue(0, 1000, "one", speaker="Smith, A"), Cue(1000, 2000, "two", speaker="Smith, A"), Cue(2000, 3000, "no")]
    read = pysubs2.SSAFile.from_string(other_formats.render_ass(cues))
    assert [(event.name, event.text) for event in read] == [("Smith  A", "one"), ("Smith  A", "two"), ("", "no")]
    assert [row.split("\t")[2] for row in other_formats.render_tsv(cues).splitlines()[1:]] == [
        "Smith, A: one",
        "two",
        "no",
    ]
    assert other_formats.render_lrc(cues).startswith("[00:00.00]Smith, A: one\n[00:01.00]two\n")


@pytest.mark.parametrize(("ms", "written"), [(1_994, "0:00:01.99"), (1_996, "0:00:02.00"), (3_599_999, "1:00:00.00")])
def test_a_time_of_ass_has_two_digits_of_centiseconds(ms, written):
    """The last milliseconds of a second are the beginning of the next."""
    assert f"Dialogue: 0,{written}," in other_formats.render_ass([Cue(ms, ms + 1_000, "x")])
