"""Every way to ask a real server process with the demonstration model: the words are right on each of them.

What each way answers in detail is tested in `E2Etest/contract`, with a fake engine.
"""

import json

import numpy as np
import pytest

from E2Etest import recordings
from E2Etest.exposition import moved, scrape
from E2Etest.live.session import act, data, finals, open_session, receive, upto_flush
from E2Etest.process import running
from E2Etest.realtime import session as realtime

pytestmark = pytest.mark.integration

PAUSE = np.zeros(40_000, np.int16)


@pytest.fixture(scope="module")
def three():
    """The bundled recording three times with pauses."""
    return recordings.wav(np.concatenate([part for _ in range(3) for part in (recordings.samples(), PAUSE)]))


def _events(answer):
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


def test_a_recording_in_every_format(server, sample):
    """The words are in each, and the count of generated tokens grows with them."""
    before = scrape(server)
    for wanted in ("json", "text", "srt", "vtt", "verbose_json"):
        answer = server.transcribe(sample[0], response_format=wanted)
        assert answer.status_code == 200, answer.text
        body = answer.json()["text"] if "json" in wanted else answer.text
        assert sample[1] in " ".join(body.split()), wanted
    assert moved(before, scrape(server))("asr_engine_tokens_total", kind="generated") >= 5 * len(sample[1].split())


def test_containers_of_phones_and_browsers(server, sample):
    """The words are the same within the losses of the codec."""
    for container, codec in (("mp3", "libmp3lame"), ("webm", "libopus"), ("ipod", "aac")):
        text = server.transcribe(recordings.encoded(container, codec)).json()["text"]
        assert recordings.word_errors(sample[1].split(), text.split()) <= 1, container


def test_loud_floats_are_brought_into_range(server, sample):
    """Samples far beyond full scale are the same words."""
    loud = (recordings.samples() / 32_768 * 40).astype("<f4").tobytes()
    assert server.transcribe(recordings.riff(loud, tag=3, rate=16_000, channels=1, bits=32)).json()["text"] == sample[1]


def test_hints_and_a_language(server, sample):
    """A prompt, hotwords and the right language leave the words as they are, or nearly."""
    fields = {"prompt": "At home.", "hotwords": "kitchen,lights", "language": "en"}
    text = server.transcribe(sample[0], **fields).json()["text"]
    assert recordings.word_errors(sample[1].split(), text.split()) <= 2


def test_streams(server, three, sample):
    """OpenAI's events and ours: joined, they are the answer without streaming."""
    whole = server.transcribe(three).json()["text"]
    assert whole.split() == 3 * sample[1].split()
    events = _events(server.transcribe(three, stream="true"))
    assert "".join(event.get("delta", "") for event in events) == events[-1]["text"] == whole
    url = "/v1/audio/transcriptions/stream"
    ours = _events(server.client.post(url, files={"file": ("a.wav", three)}, data={"model": "demo"}))
    assert [event["chunk_index"] for event in ours if event.get("is_final") is False] == [0, 1, 2]
    assert ours[-2]["text"] == whole


def test_subtitles_are_aligned(server, three, sample):
    """By the bundled aligner, every word within the recording and in order."""
    answer = server.client.post("/v1/audio/subtitles", files={"file": ("a.wav", three)}, data={"mode": "accurate"})
    assert answer.headers["x-subtitle-timing"] in {"aligned", "mixed"}
    body = server.transcribe(three, response_format="verbose_json", **{"timestamp_granularities[]": "word"}).json()
    assert [word["word"] for word in body["words"]] == 3 * sample[1].split()
    times = [at for word in body["words"] for at in (word["start"], word["end"])]
    assert times == sorted(times)
    assert "aligned" in {word["source"] for word in body["words"]}


def test_a_job(server, three, sample):
    """Its result is the text."""
    form = {"files": {"file": ("a.wav", three)}, "data": {"model": "demo", "response_format": "text"}}
    job = server.client.post("/v1/jobs", **form).json()["id"]
    with server.client.stream("GET", f"/v1/jobs/{job}/events") as events:
        assert '"succeeded"' in list(events.iter_lines())[-2]
    assert server.client.get(f"/v1/jobs/{job}/result").text.split() == 3 * sample[1].split()


def test_a_live_session(server, speech, sample):
    """Text comes while the speaker speaks, and the final has the words."""
    with open_session(server) as socket:
        socket.send(data(speech[:32_000]))
        first = receive(socket)
        assert first["is_partial"]
        assert first["text"]
        socket.send(data(speech[32_000:]))
        act(socket, "flush")
        assert [text for text, *_ in finals(upto_flush(socket))] == [sample[1]]


def test_a_realtime_session(server, sample):
    """A committed turn has its words, in deltas and as a whole."""
    with realtime.open_session(server) as talk:
        talk.update(turn_detection=None)
        talk.say(realtime.speech())
        talk.commit()
        ((joined, transcript),) = realtime.texts(talk.until(realtime.COMPLETED)).values()
    assert joined == transcript
    assert recordings.word_errors(sample[1].split(), transcript.split()) <= 1


@pytest.mark.nightly
def test_an_idle_model_gives_its_memory_back_and_comes_again(tmp_path, sample):
    """After IDLE_TIMEOUT it is unloaded; the next request is answered."""
    with running(tmp_path / "log", IDLE_TIMEOUT="0.5") as own:
        assert own.transcribe(sample[0]).json()["text"] == sample[1]
        own.wait_for(lambda health: not health["model_loaded"])
        assert own.transcribe(sample[0]).json()["text"] == sample[1]
