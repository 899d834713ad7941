"""Our own server-sent events. OpenAI's are tested with OpenAI's clients."""

import numpy as np
import pytest

from E2Etest.drive import recordings
from E2Etest.drive.process import events

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
    length, *spans, whole, done = events(server.post(f"{URL}/stream", three))
    assert length == {"duration": whole["end"]}
    assert done == {"done": True}
    assert [span["chunk_index"] for span in spans] == [0, 1, 2]
    assert [span["start"] for span in spans] == sorted(span["start"] for span in spans)
    assert not any(span["is_final"] for span in spans)
    assert whole["is_final"] is True
    assert whole["text"] == "".join(span["text"] for span in spans) == server.transcribe(three).json()["text"]


def test_where_nothing_was_said_the_language_is_the_one_asked_for(server):
    """By its name; `auto` where none was forced."""
    silence = recordings.wav(np.zeros(32_000, np.int16))
    for asked, told in ((None, "auto"), ("en", "English")):
        fields = {"language": asked} if asked else {}
        assert server.transcribe(silence, **fields).json()["language"] == told
        verbose = server.transcribe(silence, response_format="verbose_json", **fields).json()
        assert verbose["language"] == told.lower()
        assert events(server.post(f"{URL}/stream", silence, **fields))[-2]["language"] == told


@pytest.mark.parametrize("response_format", ["json", "text", "verbose_json", "srt", "vtt"])
def test_every_format_is_an_event_stream(server, three, response_format):
    """The last text is that of the same request without a stream; deltas, where there are any, join to it."""
    fields = {"response_format": response_format}
    if response_format == "verbose_json":
        fields["timestamp_granularities[]"] = ["word", "segment"]
    whole = server.transcribe(three, **fields)
    answer = server.transcribe(three, stream="true", **fields)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *deltas, done = events(answer)
    assert done["type"] == "transcript.text.done"
    text = whole.json()["text"] if "json" in response_format else whole.text
    assert done["text"].strip() == text.strip()
    assert bool(deltas) is (response_format not in ("srt", "vtt"))
    assert not deltas or "".join(event["delta"] for event in deltas) == done["text"]
    if response_format == "verbose_json":
        assert done["segments"] == whole.json()["segments"]
        assert done["words"] == whole.json()["words"]
