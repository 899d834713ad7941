"""Calls with one person on each channel over HTTP: every format, and what cannot be split."""

import numpy as np
import pytest

from asr_server.subtitle.cues import parse_srt, parse_vtt
from E2Etest.drive import recordings
from E2Etest.drive.process import events, refusal

pytestmark = pytest.mark.demo_server

SPLIT = {"speakers": "true", "channel_mode": "split"}


@pytest.fixture(scope="module")
def call():
    """The sample on the left, and on the right from its middle on: half of it is said at the same time."""
    spoken = recordings.samples()
    half = len(spoken) // 2
    stereo = np.stack([np.pad(spoken, (0, half)), np.pad(spoken, (half, 0))])
    return recordings.wav(stereo[:, : len(spoken) + half].T.reshape(-1), channels=2)


def test_each_channel_has_its_words(server, call, sample):
    """All of them, in the order of their beginnings, with the speaker of the channel."""
    body = server.transcribe(call, response_format="diarized_json", channel_mode="split").json()
    assert [(segment["speaker"], segment["text"]) for segment in body["segments"]] == [
        ("A", sample[1]),
        ("B", sample[1]),
    ]
    assert body["segments"][0]["end"] > body["segments"][1]["start"]
    assert body["text"].split() == 2 * sample[1].split()
    verbose = server.transcribe(call, response_format="verbose_json", **SPLIT, return_timestamps="true").json()
    assert [segment["speaker"] for segment in verbose["segments"]] == ["A", "B"]


def test_streams_have_the_same(server, call):
    """Deltas, then the segments with their speakers."""
    whole = server.transcribe(call, response_format="diarized_json", channel_mode="split").json()
    stream = events(server.transcribe(call, response_format="diarized_json", channel_mode="split", stream="true"))
    assert "".join(event.get("delta", "") for event in stream) == whole["text"]
    segments = [event for event in stream if event["type"].endswith("segment")]
    assert [(one["speaker"], one["text"]) for one in segments] == [(s["speaker"], s["text"]) for s in whole["segments"]]


@pytest.mark.parametrize(("kind", "parse"), [("srt", parse_srt), ("vtt", parse_vtt)])
def test_subtitles_of_speech_at_the_same_time(server, call, sample, kind, parse):
    """Cues are in order and do not overlap, although their words do, and no word is lost."""
    file = server.transcribe(call, response_format=kind, **SPLIT).text
    cues = parse(file)
    times = [at for cue in cues for at in (cue.start_ms, cue.end_ms)]
    assert times == sorted(times)
    text = " ".join(cue.text for cue in cues).replace("A: ", "").replace("B: ", "")
    assert sorted(text.split()) == sorted(2 * sample[1].split())


def test_copies_and_mono_are_one_speaker(server, sample):
    """The same words, once."""
    spoken = recordings.samples()
    stereo = recordings.wav(np.stack([spoken, -spoken // 2]).T.reshape(-1), channels=2)
    expected = server.transcribe(sample[0]).json()["text"]
    for audio in (sample[0], stereo):
        body = server.transcribe(audio, response_format="diarized_json", channel_mode="split").json()
        assert {segment["speaker"] for segment in body["segments"]} == {"A"}
        assert body["text"] == expected


def test_nine_channels_cannot_be_split(server, sample):
    """A clear error that names the field, also in a stream; mixed they are a recording like any other."""
    nine = recordings.wav(np.tile(recordings.samples(), (9, 1)).T.reshape(-1), channels=9)
    for stream in ("false", "true"):
        refused = server.transcribe(nine, response_format="diarized_json", channel_mode="split", stream=stream)
        assert refusal(refused) == (400, "unsupported_value", "channel_mode")
        assert "up to 8 channels" in refused.text
    assert server.transcribe(nine).json()["text"] == server.transcribe(sample[0]).json()["text"]
