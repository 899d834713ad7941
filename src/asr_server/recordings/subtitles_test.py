"""Settings to rules, segments to cues."""

from asr_server.core import settings
from asr_server.core.transcript import Segment, TimeSource, Transcript, Word
from asr_server.recordings import subtitles
from asr_server.recordings.requests import OutputOptions
from asr_server.subtitle.cue_config import CueConfig, SpeakerStyle


def _segment(text, start, source):
    words = tuple(Word(w, start + 300 * i, start + 300 * (i + 1), source) for i, w in enumerate(text.split()))
    return Segment(start, start + 300 * len(words), text, "English", (), 0.0, 0.0, words=words)


def _transcript(segments):
    return Transcript("", "English", segments[-1].end_ms, tuple(segments))


def test_the_default_settings_are_the_default_rules():
    """Each number has one truth, whichever way it is reached."""
    assert subtitles.cue_config(settings.load(), OutputOptions()) == CueConfig()


def test_every_setting_arrives(monkeypatch):
    """Seconds of the environment become milliseconds of the rules."""
    for name, value in {"MAX_DURATION": 5, "MIN_DURATION": 1.5, "MIN_GAP": 0.04, "PAUSE_THRESHOLD": 0.7}.items():
        monkeypatch.setenv(f"SUBTITLE_{name}", str(value))
    output = OutputOptions(max_line_chars=32, max_lines=1, speaker_style=SpeakerStyle.DASH)
    expected = CueConfig(5000, 1500, 40, 700, 32, 1, speaker_style=SpeakerStyle.DASH)
    assert subtitles.cue_config(settings.load(), output) == expected


def test_segments_become_cues_in_order():
    """A pause between segments is the end of a cue; their texts stay apart."""
    segments = [_segment("one two three", 0, TimeSource.ALIGNED), _segment("four five six", 3000, TimeSource.ALIGNED)]
    cues = subtitles.cues(_transcript(segments), CueConfig())
    assert [cue.text for cue in cues] == ["one two three", "four five six"]


def test_the_last_cue_ends_with_the_recording():
    """A short word at the very end is not shown on where there is no picture any more."""
    (cue,) = subtitles.cues(_transcript([_segment("stop", 100, TimeSource.ALIGNED)]), CueConfig())
    assert (cue.start_ms, cue.end_ms) == (100, 400)


def test_the_source_names_what_the_times_are():
    """Aligned, estimated, or mixed as soon as one word differs."""
    aligned, estimated = _segment("a b", 0, TimeSource.ALIGNED), _segment("c", 900, TimeSource.ESTIMATED)
    assert subtitles.time_source([aligned]) == "aligned"
    assert subtitles.time_source([estimated]) == "estimated"
    assert subtitles.time_source([aligned, estimated]) == "mixed"
    assert subtitles.time_source([]) == "estimated"
