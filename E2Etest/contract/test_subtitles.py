"""Words in time over HTTP: word times, subtitle files, and where their times come from."""

import numpy as np
import pytest

from asr_server.subtitle.cues import parse_srt, parse_vtt
from asr_server_fake.script import FakeScript
from E2Etest.drive import recordings
from E2Etest.drive.process import events

pytestmark = pytest.mark.demo_server

PAUSE = np.zeros(40_000, np.int16)


@pytest.fixture(scope="module")
def server(reach):
    """A server that has loaded no aligner yet."""
    with reach() as process:
        yield process


@pytest.fixture(scope="module")
def talk():
    """The sample three times with pauses."""
    return recordings.wav(np.concatenate([part for _ in range(3) for part in (recordings.samples(), PAUSE)]))


def subtitles(server, audio, **fields):
    return server.post("/v1/audio/subtitles", audio, **fields)


def test_fast_times_are_estimates_and_load_no_aligner(server, talk, sample):
    """Every word says so, lies inside the speech, and the aligner stays where it is."""
    body = server.transcribe(talk, return_timestamps="true", mode="fast").json()
    assert [word["word"] for word in body["words"]] == 3 * sample[1].split()
    assert {word["source"] for word in body["words"]} == {"estimated"}
    assert server.health()["aligner_state"] == "unloaded"
    times = [at for word in body["words"] for at in (word["start"], word["end"])]
    assert times == sorted(times)
    # The pauses are silent: no word lies over one.
    length = len(recordings.samples()) / 16_000
    for start, end in ((length, length + 2.5), (2 * length + 2.5, 2 * length + 5.0)):
        assert not any(w["start"] < start + 0.2 and w["end"] > end - 0.2 for w in body["words"])


def test_accurate_times_are_aligned(server, talk, sample):
    """The aligner is loaded for them; the same words, in order, inside the recording."""
    body = server.transcribe(talk, response_format="verbose_json", **{"timestamp_granularities[]": "word"}).json()
    assert [word["word"] for word in body["words"]] == 3 * sample[1].split()
    assert "aligned" in {word["source"] for word in body["words"]}
    assert server.health()["aligner_state"] == "loaded"
    times = [at for word in body["words"] for at in (word["start"], word["end"])]
    assert times == sorted(times)
    assert 0 <= times[0] < times[-1] <= body["duration"]


@pytest.mark.parametrize(("kind", "parse"), [("srt", parse_srt), ("vtt", parse_vtt)])
@pytest.mark.parametrize(("mode", "timing"), [("fast", {"estimated"}), ("accurate", {"aligned", "mixed"})])
def test_a_subtitle_file_has_every_word_in_narrow_lines(server, talk, sample, kind, parse, mode, timing):
    """A file to be saved, whose cues hold every word, in lines as narrow as they are asked for."""
    answer = subtitles(server, talk, mode=mode, format=kind, max_line_chars="24")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-disposition"] == f'attachment; filename="subtitles.{kind}"'
    assert answer.headers["x-subtitle-timing"] in timing
    cues = parse(answer.text)
    assert " ".join(" ".join(cue.lines) for cue in cues).split() == 3 * sample[1].split()
    assert max(len(line) for cue in cues for line in cue.lines) <= 24


def test_the_native_stream_carries_words_where_they_are_wanted(server, talk, sample):
    """Each span's event has its own words; without the wish there are none."""
    for wish, expected in (({}, None), ({"return_timestamps": "true", "mode": "fast"}, 3 * sample[1].split())):
        sent = events(server.post("/v1/audio/transcriptions/stream", talk, **wish))
        spans = [event for event in sent if event.get("is_final") is False]
        words = [word["word"] for event in spans for word in event.get("words", [])]
        assert (words or None) == expected


def test_silence_is_an_empty_file(server):
    """No speech, no cue, no error."""
    answer = subtitles(server, recordings.wav(np.zeros(32_000, np.int16)))
    assert (answer.status_code, answer.text) == (200, "")


def test_a_job_makes_the_same_file(server, talk):
    """With its headers, from the state directory."""
    asked = {"mode": "fast", "format": "vtt"}
    state, result = server.job(talk, task="subtitles", **asked)
    assert state["status"] == "succeeded"
    direct = subtitles(server, talk, **asked)
    assert result.text == direct.text
    assert result.headers["x-subtitle-timing"] == "estimated"


def test_without_an_aligner_times_are_estimates(start, talk):
    """An aligner that is not there costs nobody the words; `/health` says what is the matter."""
    with start(script=FakeScript(aligner_missing=True)) as server:
        answer = subtitles(server, talk)
        assert (answer.status_code, answer.headers["x-subtitle-timing"]) == (200, "estimated")
        assert "FORCED_ALIGNER_ID" in server.health()["aligner_error"]
