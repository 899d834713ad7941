"""Every way to ask a real server: the words are right on each of them.

It is a process with the demonstration model, or the server at `E2E_BASE_URL`.
What each way answers in detail is tested in `E2Etest/contract`, with a fake engine.
"""

import re

import numpy as np
import pytest

from E2Etest.drive import recordings
from E2Etest.drive.process import events
from E2Etest.drive.session import act, data, finals, open_session, receive, upto_flush
from E2Etest.realtime import session as realtime

pytestmark = [pytest.mark.integration, pytest.mark.any_server]

PAUSE = np.zeros(40_000, np.int16)


@pytest.fixture(scope="module")
def three(spoken):
    """The recording three times with pauses."""
    return recordings.wav(np.concatenate([part for _ in range(3) for part in (spoken.samples, PAUSE)]))


def _without_times(cues):
    return re.sub(r"^(?:WEBVTT|\d+|.* --> .*)$", "", cues, flags=re.MULTILINE)


@pytest.mark.smoke
def test_a_recording_in_every_format(server, spoken):
    """The words are in each."""
    for wanted in ("json", "text", "srt", "vtt", "verbose_json"):
        answer = server.transcribe(recordings.wav(spoken.samples), response_format=wanted)
        assert answer.status_code == 200, answer.text
        spoken.check(answer.json()["text"] if "json" in wanted else _without_times(answer.text))


def test_hints_and_a_language(server, spoken):
    """A prompt, hotwords and the right language leave the words as they are, or nearly."""
    fields = {"prompt": "At home.", "hotwords": "kitchen,lights", "language": "en"}
    spoken.check(server.transcribe(recordings.wav(spoken.samples), **fields).json()["text"], more_errors=2)


def test_streams(server, three, spoken):
    """OpenAI's events and ours: joined, they are the answer without streaming."""
    whole = server.transcribe(three).json()["text"]
    spoken.check(whole, times=3)
    theirs = events(server.transcribe(three, stream="true"))
    assert "".join(event.get("delta", "") for event in theirs) == theirs[-1]["text"] == whole
    ours = events(server.post("/v1/audio/transcriptions/stream", three, model=server.model))
    assert [event["chunk_index"] for event in ours if event.get("is_final") is False] == [0, 1, 2]
    assert ours[-2]["text"] == whole


def test_subtitles_are_aligned(server, three, spoken):
    """By an aligner, every word within the recording and in order."""
    answer = server.post("/v1/audio/subtitles", three, mode="accurate")
    assert answer.headers["x-subtitle-timing"] in {"aligned", "mixed"}
    body = server.transcribe(three, response_format="verbose_json", **{"timestamp_granularities[]": "word"}).json()
    spoken.check(" ".join(word["word"] for word in body["words"]), times=3)
    times = [at for word in body["words"] for at in (word["start"], word["end"])]
    assert times == sorted(times)
    assert "aligned" in {word["source"] for word in body["words"]}


def test_a_job(server, three, spoken):
    """Its result is the text."""
    state, result = server.job(three, model=server.model, response_format="text")
    assert state["status"] == "succeeded"
    spoken.check(result.text, times=3)


@pytest.mark.websocket
def test_a_live_session(server, spoken):
    """Text comes while the speaker speaks, and the final has the words."""
    speech = np.concatenate([spoken.samples, PAUSE])
    with open_session(server) as socket:
        socket.send(data(speech[:32_000]))
        first = receive(socket)
        assert first["is_partial"]
        assert first["text"]
        socket.send(data(speech[32_000:]))
        act(socket, "flush")
        ((text, *_),) = finals(upto_flush(socket))
    spoken.check(text)


@pytest.mark.websocket
def test_a_realtime_session(server, spoken):
    """A committed turn has its words, in deltas and as a whole."""
    with realtime.open_session(server) as talk:
        talk.update(turn_detection=None)
        talk.say(realtime.pcm24(spoken.samples))
        talk.commit()
        ((joined, transcript),) = realtime.texts(talk.until(realtime.COMPLETED)).values()
    assert joined == transcript
    spoken.check(transcript, more_errors=1)
