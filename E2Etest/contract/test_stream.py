"""Our own server-sent events, and what is refused before the first. OpenAI's are tested with OpenAI's clients."""

import json

import numpy as np
import pytest

from E2Etest import recordings

pytestmark = pytest.mark.demo_server

URL = "/v1/audio/transcriptions"


@pytest.fixture(scope="module")
def three(sample):
    """The sample three times with long pauses between: three spans."""
    pcm = recordings.samples()
    pause = np.zeros(16_000 * 5, np.int16)
    return recordings.wav(np.concatenate([pcm, pause, pcm, pause, pcm]))


def test_our_own_events_come_span_by_span(server, three):
    """One event for each finished span in order, then the whole, then done."""
    data = {"model": "demo"}
    with server.client.stream("POST", f"{URL}/stream", files={"file": ("a.wav", three)}, data=data) as answer:
        lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
    length, *spans, whole, done = [json.loads(line[6:]) for line in lines]
    assert length == {"duration": whole["end"]}
    assert done == {"done": True}
    assert [span["chunk_index"] for span in spans] == [0, 1, 2]
    assert [span["start"] for span in spans] == sorted(span["start"] for span in spans)
    assert not any(span["is_final"] for span in spans)
    assert whole["is_final"] is True
    assert whole["text"] == "".join(span["text"] for span in spans) == server.transcribe(three).json()["text"]


@pytest.mark.parametrize(
    ("wish", "param"),
    [
        ({"include[]": "logprobs"}, "include"),
        *(({"response_format": name}, "response_format") for name in ("srt", "vtt", "verbose_json", "diarized_json")),
    ],
)
def test_what_our_own_events_do_not_have_is_refused(server, wish, param):
    """Log-probabilities, subtitles and scores would be left out without a word."""
    form = {"files": {"file": ("a.wav", recordings.sample()[0])}, "data": {"model": "demo", **wish}}
    answer = server.client.post(f"{URL}/stream", **form)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "unsupported_value", param)


@pytest.mark.parametrize("path", [URL, f"{URL}/stream"])
def test_what_is_wrong_with_a_recording_is_a_status(server, path):
    """Bad audio, a bad field, an unknown model: refused before the first event, as without streaming."""
    for audio, fields, status, code in (
        (b"no audio" * 100, {}, 400, "invalid_audio"),
        (recordings.sample()[0], {"language": "is"}, 400, "unsupported_language"),
        (recordings.sample()[0], {"model": "nobody"}, 404, "model_not_found"),
    ):
        data = {"model": "demo", "stream": "true", **fields}
        answer = server.client.post(path, files={"file": ("a.wav", audio)}, data=data)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_where_nothing_was_said_the_language_is_the_one_asked_for(server):
    """By its name; `auto` where none was forced."""
    silence = recordings.wav(np.zeros(32_000, np.int16))
    for asked, told in ((None, "auto"), ("en", "English")):
        fields = {"language": asked} if asked else {}
        assert server.transcribe(silence, **fields).json()["language"] == told
        verbose = server.transcribe(silence, response_format="verbose_json", **fields).json()
        assert verbose["language"] == told.lower()
        answer = server.client.post(f"{URL}/stream", files={"file": ("a.wav", silence)}, data=fields).text
        assert json.loads(answer.split("data: ")[-2])["language"] == told


@pytest.mark.parametrize("response_format", ["json", "text", "verbose_json", "srt", "vtt"])
def test_every_format_is_an_event_stream(server, three, response_format):
    """The last text is that of the same request without a stream; deltas, where there are any, join to it."""
    fields = {"response_format": response_format}
    if response_format == "verbose_json":
        fields["timestamp_granularities[]"] = ["word", "segment"]
    whole = server.transcribe(three, **fields)
    answer = server.transcribe(three, stream="true", **fields)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    *deltas, done = events
    assert done["type"] == "transcript.text.done"
    text = whole.json()["text"] if "json" in response_format else whole.text
    assert done["text"].strip() == text.strip()
    assert bool(deltas) is (response_format not in ("srt", "vtt"))
    assert not deltas or "".join(event["delta"] for event in deltas) == done["text"]
    if response_format == "verbose_json":
        assert done["segments"] == whole.json()["segments"]
        assert done["words"] == whole.json()["words"]
