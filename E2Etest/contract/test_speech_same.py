"""Every route returns the same speech for a text, with or without other requests, at every speed."""

import base64
from concurrent.futures import ThreadPoolExecutor

import pytest

from E2Etest.drive.process import events

URL = "/v1/audio/speech"
TEXT = "The first one is short. The second sentence has a few more words in it! Is the third one a question?"
RATE = 24_000


@pytest.fixture(scope="module")
def speaking(start):
    """Speaks with eSpeak NG."""
    with start(SPEECH="espeak") as server:
        yield server


def _spoken(server, path="", **fields):
    answer = server.client.post(URL + path, json={"input": TEXT, **fields})
    assert answer.status_code == 200, answer.text
    return answer


def _joined(parts):
    return b"".join(base64.b64decode(part) for part in parts)


def test_every_route_sends_the_same_samples(speaking):
    """As a file, in events of both kinds, and without a header."""
    samples = _spoken(speaking, response_format="pcm").content
    assert len(samples) > 3 * RATE
    assert _spoken(speaking, "/stream/pcm").content == samples
    assert _joined(event["audio"] for event in events(_spoken(speaking, "/stream"))) == samples
    sent = events(_spoken(speaking, response_format="pcm", stream_format="sse"))
    assert _joined(event["audio"] for event in sent if "audio" in event) == samples
    assert _spoken(speaking, response_format="wav").content[44:] == samples


def test_two_callers_at_once_get_what_each_gets_alone(speaking):
    """Other voices, texts and formats beside each other, four times."""
    wanted = [
        {"voice": "nova", "response_format": "mp3"},
        {"voice": "onyx", "response_format": "flac", "input": "Something else. And another thing."},
    ]
    alone = [_spoken(speaking, **fields).content for fields in wanted]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda fields: _spoken(speaking, **fields).content, 4 * wanted))
    assert together == 4 * alone
