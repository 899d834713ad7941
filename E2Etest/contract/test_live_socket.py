"""The contract of `WS /ws/transcribe`, message by message."""

import numpy as np
import pytest
import soxr
from websockets.exceptions import ConnectionClosed

from E2Etest.drive import recordings
from E2Etest.drive.session import act, data, finals, open_session, pieces, receive, stream, upto_flush

pytestmark = [pytest.mark.websocket, pytest.mark.demo_server]


def test_the_first_message_says_what_the_session_is(live_server):
    """All fields of the contract with their defaults."""
    with open_session(live_server) as socket:
        hello = dict(socket.hello)
    assert len(hello.pop("session_id")) > 20
    assert hello == {
        "status": "connected",
        "sample_rate": 16000,
        "format": "pcm_s16le",
        "buffer_size": 14400,
        "overlap_size": 9600,
        "window_max_s": 30.0,
        "use_server_vad": True,
        "endpointing": "pause",
    }


def test_speech_becomes_partials_and_a_final_with_its_words(live_server, talk, said):
    """Each utterance ends with the words that were said; its messages carry all fields."""
    messages = stream(live_server, pieces(data(talk), 3_200))
    assert [text for text, *_ in finals(messages)] == [said, said]
    for message in messages:
        assert message["text"] == message["committed"] + message["tentative"]
        assert message["is_final"] is not message["is_partial"]
        assert message["start"] <= message["end"]
        assert isinstance(message["lag_ms"], int)
    spoken = [m for m in messages if m["text"]]
    assert {m["language"] for m in spoken} == {"English"}
    assert {m["language_code"] for m in spoken} == {"en"}


@pytest.mark.parametrize(("how", "source"), [("fast", {"estimated"}), ("accurate", {"aligned", "estimated"})])
def test_words_follow_their_final_with_their_times(live_server, speech, said, how, source):
    """All words of the final, in order, inside the utterance, told behind it; only where they are asked for."""
    with open_session(live_server, words=how) as socket:
        socket.send(data(speech))
        socket.send(data(np.zeros(16_000, np.int16)))
        while not (final := receive(socket)).get("is_final"):
            pass
        told = receive(socket)
    assert (final["text"], told["utterance"]) == (said, final["utterance"])
    words = told["words"]
    assert [word["word"] for word in words] == said.split()
    times = [at for word in words for at in (word["start"], word["end"])]
    assert times == sorted(times)
    assert final["start"] <= times[0] < times[-1] <= final["end"] + 0.01
    assert {word["source"] for word in words} <= source


def test_a_flush_always_answers_with_one_final(live_server, speech, said):
    """Empty when nothing was said, in time order otherwise."""
    with open_session(live_server) as socket:
        act(socket, "flush")
        assert upto_flush(socket)[-1]["text"] == ""
        socket.send(data(speech[: len(speech) - 14_400]))
        act(socket, "flush")
        act(socket, "flush")
        assert finals(upto_flush(socket))[0][3] == "flush"
        assert upto_flush(socket)[-1]["text"] == ""
        socket.send(data(speech))
        act(socket, "flush")
        assert [(m["text"], m["ending"]) for m in upto_flush(socket) if m["is_final"]] == [
            (said, "pause"),
            ("", "flush"),
        ]


def test_reset_config_and_ping_are_answered(live_server):
    """Each with its status; the language may be a code, a locale or a name, and is answered as it was written."""
    with open_session(live_server) as socket:
        act(socket, "ping")
        assert receive(socket) == {"status": "pong"}
        act(socket, "reset")
        assert receive(socket) == {"status": "buffer_reset"}
        for language, name in [("en", "English"), ("en-US", "English"), ("German", "German"), ("auto", "")]:
            act(socket, "config", language=language)
            told = {"status": "configured", "language": language, "language_name": name}
            told |= {"use_server_vad": True, "endpointing": "pause"}
            assert receive(socket) == told
        act(socket, "config", language="en")
        receive(socket)
        act(socket, "config", use_server_vad=False, hotwords=["kitchen", "lights"])
        told = {"status": "configured", "language": "en", "language_name": "English"}
        told |= {"use_server_vad": False, "endpointing": "manual"}
        assert receive(socket) == told


def test_with_manual_endpointing_a_flush_alone_ends_an_utterance(live_server, speech, said):
    """By query and by action: a pause of 2 s ends nothing, the flush has all words, and detection can come back."""
    pause = np.zeros(32_000, np.int16)
    with open_session(live_server, endpointing="manual") as socket:
        assert (socket.hello["endpointing"], socket.hello["use_server_vad"]) == ("manual", False)
        for _ in range(2):
            socket.send(data(np.concatenate([speech, pause])))
            act(socket, "flush")
            assert [(m["text"], m["ending"]) for m in upto_flush(socket) if m["is_final"]] == [(said, "flush")]
        act(socket, "config", endpointing="auto")
        assert receive(socket)["endpointing"] == "pause"
        socket.send(data(np.concatenate([speech, pause])))
        act(socket, "flush")
        assert [m["ending"] for m in upto_flush(socket) if m["is_final"]] == ["pause", "flush"]
        act(socket, "config", endpointing="manual")
        assert receive(socket)["endpointing"] == "manual"
        act(socket, "config", language="en")
        assert receive(socket)["endpointing"] == "manual"
        act(socket, "config", endpointing="sometimes")
        assert receive(socket)["code"] == "invalid_value"


def test_a_reset_throws_away_what_was_said_and_the_next_words_are_heard(live_server, speech, said):
    """No word from before the reset comes after it."""
    with open_session(live_server) as socket:
        socket.send(data(speech[:20_000]))
        act(socket, "reset")
        while receive(socket).get("status") != "buffer_reset":
            pass
        socket.send(data(speech))
        act(socket, "flush")
        assert [text for text, *_ in finals(upto_flush(socket))] == [said]


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("{", "malformed_body"),
        ("[1]", "malformed_body"),
        ("[" * 50_000, "malformed_body"),
        ('{"action":"dance"}', "invalid_value"),
        ('{"language":"en"}', "invalid_value"),
        ('{"action":"config","language":"klingon-language-of-stars"}', "invalid_language_format"),
        ('{"action":"config","language":"tlh"}', "unsupported_language"),
        ('{"action":"config","use_server_vad":"perhaps"}', "invalid_value"),
        ('{"action":"config","hotwords":7}', "invalid_value"),
    ],
)
def test_a_bad_text_frame_is_reported_and_the_session_goes_on(live_server, speech, said, frame, code):
    """The error has a code and is no text of a transcript; the next words are heard."""
    with open_session(live_server) as socket:
        socket.send(frame)
        message = receive(socket)
        assert message["code"] == message["error"]["code"] == code
        assert set(message) == {"error", "code"}
        socket.send(data(speech))
        act(socket, "flush")
        assert [text for text, *_ in finals(upto_flush(socket))] == [said]


@pytest.mark.parametrize(
    ("query", "code", "close"),
    [
        ({"sample_rate": "11025"}, "invalid_value", 4000),
        ({"sample_rate": "many"}, "invalid_value", 4000),
        ({"use_server_vad": "perhaps"}, "invalid_value", 4000),
        ({"language": "tlh"}, "unsupported_language", 4000),
        ({"received": "-1"}, "invalid_value", 4000),
        ({"session_id": "live_00000000.unknown"}, "session_not_found", 4004),
    ],
)
def test_a_bad_query_is_reported_and_closes_with_its_code(live_server, query, code, close):
    """First the error as a message, then the documented close code."""
    with open_session(live_server, **query) as socket:
        assert socket.hello["code"] == code
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=10)
        assert closed.value.rcvd.code == close


@pytest.mark.parametrize("rate", [8_000, 44_100])
def test_another_sample_rate_gives_the_words(live_server, speech, said, rate):
    """The bundled recording, resampled by the sender, comes back with its words and its times."""
    pcm = soxr.resample(speech, 16_000, rate)
    messages = stream(live_server, pieces(data(pcm), 4_001), sample_rate=rate)
    ((text, start, end, _),) = finals(messages)
    # Two resamplings change the sound a little, telephone bandwidth more: "on" and "off" differ above 4 kHz.
    assert recordings.word_errors(said.split(), text.split()) <= len(said.split()) // 3
    assert 0 <= start < end <= len(speech) / 16_000


def test_silence_and_noise_cost_no_engine_time(live_server):
    """Twenty seconds without speech make no message at all, and nothing for the engine."""
    rng = np.random.default_rng(0)
    quiet = rng.normal(0, 20, 20 * 16_000).astype(np.int16)
    messages = stream(live_server, pieces(data(quiet), 32_000))
    assert [(m["text"], m["ending"]) for m in messages] == [("", "flush")]
