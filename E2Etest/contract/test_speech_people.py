"""Speech as the server makes it by default: a person's voice for English, eSpeak NG for the other languages."""

import numpy as np
import pytest

from asr_server.core.audio import SPEECH_RATE
from E2Etest.contract.test_speech_socket import audio, hear, opened, say, whole

URL = "/v1/audio/speech"
TEXT = "The kettle is on. Tea will be ready in two minutes."


@pytest.fixture(scope="module")
def server(start):
    with start(SPEECH="auto") as found:
        yield found


@pytest.fixture(scope="module")
def synthesiser(start):
    with start(SPEECH="espeak") as found:
        yield found


def _spoken(server, text=TEXT, path="", **fields):
    answer = server.client.post(URL + path, json={"input": text, "response_format": "pcm", **fields})
    assert answer.status_code == 200, answer.text
    return answer.content


def _seconds(samples):
    return len(samples) / 2 / SPEECH_RATE


@pytest.mark.slow("loads voices of people")
def test_english_is_spoken_by_a_person_and_other_languages_as_before(server, synthesiser):
    """All names of OpenAI mean that person in English."""
    assert _spoken(server) != _spoken(synthesiser)
    assert _spoken(server, voice="nova") == _spoken(server) == _spoken(server, voice="en_US-joe-medium")
    german = {"text": "Guten Abend.", "language": "de", "voice": "nova"}
    assert _spoken(server, **german) == _spoken(synthesiser, **german)
    assert _spoken(server, voice="f1") == _spoken(synthesiser, voice="f1")


@pytest.mark.slow("loads voices of people")
def test_seeds_and_the_pace(server):
    """A seed gives the same answer by every route. Another pace is the voice's own and no stretched sound."""
    assert _spoken(server, seed=5) == _spoken(server, seed=5) == _spoken(server, path="/stream/pcm", seed=5)
    assert _spoken(server, seed=5) != _spoken(server, seed=6)
    usual = _seconds(_spoken(server, pause_ms=0))
    assert _seconds(_spoken(server, pause_ms=0, speed=2)) < 0.7 * usual
    assert _seconds(_spoken(server, pause_ms=0, speed=0.5)) > 1.5 * usual
    pauses = [_seconds(_spoken(server, speed=2, pause_ms=pause)) for pause in (0, 2_000)]
    assert pauses[1] - pauses[0] == pytest.approx(1.0, abs=0.01)


def test_a_sentence_is_heard_while_it_is_made(server):
    """The answer comes in pieces, and the first is not most of it."""
    text = "This sentence goes on for a good while, so that there is time to hear its beginning before its end is made."
    with server.client.stream("POST", URL, json={"input": text, "response_format": "pcm"}) as answer:
        pieces = [len(piece) for piece in answer.iter_raw()]
    assert len(pieces) > 3
    assert pieces[0] < sum(pieces) / 2


def test_samples_are_whole_words_of_a_loud_voice(server):
    """No window of frames leaves a gap or a click of full scale."""
    samples = np.frombuffer(_spoken(server, pause_ms=0), "<i2").astype(np.float32) / 32_768
    assert 0.1 < np.abs(samples).max() < 1.0
    quiet = np.abs(samples).reshape(-1)[: len(samples) // 240 * 240].reshape(-1, 240).max(axis=1) < 0.01
    assert quiet.mean() < 0.4


@pytest.mark.slow("loads voices of people")
@pytest.mark.websocket
@pytest.mark.parametrize("speed", [1.0, 2.0])
def test_a_text_that_arrives_is_spoken_by_the_engine_of_its_language(server, speed):
    """By that of each text of a socket, with the samples of the whole text; Greek has no voice of a person."""
    with opened(server) as peer:
        say(peer, "start", speed=speed)
        hear(peer, "started")
        for text in ("Καλημέρα σας. Τι κάνετε;", TEXT, "Καλημέρα σας. Τι κάνετε;"):
            say(peer, "text", text=text)
            say(peer, "flush")
            assert audio(hear(peer, "flushed")) == whole(server, text, speed=speed)
