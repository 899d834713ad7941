"""Playlists and segments, read by the parsers of others, in `E2Etest` too."""

import m3u8
import pytest
import webvtt
from hypothesis import given
from hypothesis import strategies as st

from asr_server.features.sharing.captions import Caption
from asr_server.features.sharing.segments import SEGMENT_S, Segments


def said(number, text, start_s, end_s):
    """A final."""
    return Caption(number, text, start_s, end_s, "English", is_final=True, number=number)


def listed(segments):
    """The playlist, and the cues of each segment that is listed, by its number."""
    playlist = m3u8.loads(segments.playlist("mpegts=0"))
    first = playlist.media_sequence
    names = [segment.uri for segment in playlist.segments]
    assert names == [f"segments/{number}.vtt?mpegts=0" for number in range(first, first + len(names))]
    assert all(segment.duration == playlist.target_duration == SEGMENT_S for segment in playlist.segments)
    return playlist, {number: cues(segments, number) for number in range(first, first + len(names))}


def cues(segments, number):
    """The cues of a segment."""
    return [
        (cue.text, cue.start_in_seconds, cue.end_in_seconds) for cue in webvtt.from_string(segments.segment(number, 0))
    ]


def test_a_cue_is_in_every_segment_in_which_it_is_shown():
    """Silence has segments without cues."""
    segments = Segments()
    segments.advance([said(1, "Turn on.", 5, 7)], 19, is_complete=False)
    playlist, found = listed(segments)
    assert not playlist.is_endlist
    assert [[text for text, *_ in found[number]] for number in range(3)] == [["Turn on."], ["Turn on."], []]


def test_the_window_slides_and_what_was_listed_stays_for_a_while():
    """At most ten are listed and twenty kept, and a segment that is not listed yet is not there."""
    segments = Segments()
    segments.advance([], 100 * SEGMENT_S + 1, is_complete=False)
    playlist, found = listed(segments)
    assert (playlist.media_sequence, len(found)) == (90, 10)
    assert [segments.segment(number, 0) is None for number in (79, 80, 99, 100)] == [True, False, False, True]


def test_the_end_of_the_session_lists_all_that_was_said():
    """The player asks no more."""
    segments = Segments()
    segments.advance([said(1, "Turn on.", 2, 7)], 3, is_complete=True)
    playlist, found = listed(segments)
    assert playlist.is_endlist
    assert len(found) == 2


def test_the_header_places_the_session_in_the_stream_of_the_player():
    """A player adds the time of its stream to those of the cues."""
    segments = Segments()
    segments.advance([], SEGMENT_S, is_complete=False)
    assert segments.segment(0, 900_000).startswith("WEBVTT\nX-TIMESTAMP-MAP=MPEGTS:900000,LOCAL:00:00:00.000\n\n")


def test_a_text_that_comes_too_late_is_shown_in_the_next_segment():
    """A player does not read a segment again, so no text is put into one that was listed."""
    segments = Segments()
    segments.advance([], 12, is_complete=False)
    before = segments.segment(1, 0)
    segments.advance([said(1, "Turn on.", 7, 9)], 18, is_complete=False)
    assert segments.segment(1, 0) == before
    ((text, start_s, end_s),) = cues(segments, 2)
    assert (text, start_s) == ("Turn on.", 12)
    assert end_s == pytest.approx(14, abs=0.1)


@given(
    lengths=st.lists(st.tuples(st.floats(0, 20), st.floats(0.5, 30)), min_size=1, max_size=12),
    delays=st.lists(st.integers(0, 4), min_size=12, max_size=12),
)
def test_no_segment_changes_and_every_text_is_shown(lengths, delays):
    """However long utterances and pauses are, and however often the playlist is read."""
    segments, finals, texts, seen, now_s = Segments(), [], [], {}, 0.0
    for number, ((pause_s, length_s), reads) in enumerate(zip(lengths, delays, strict=False), 1):
        start_s, now_s = now_s + pause_s, now_s + pause_s + length_s
        finals.append(said(number, f"word{number}", start_s, now_s))
        texts.append(f"word{number}")
        for read in range(reads + 1):
            segments.advance(finals, start_s + read, is_complete=False)
            for at, file in listed(segments)[1].items():
                assert seen.setdefault(at, file) == file
    segments.advance(finals, now_s, is_complete=True)
    seen |= listed(segments)[1]
    assert {text for file in seen.values() for text, *_ in file} == set(texts)
