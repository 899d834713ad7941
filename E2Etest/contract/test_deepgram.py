"""Deepgram's API: recordings and live audio over `/v1/listen`, as its clients send and read them."""

import json
from urllib.parse import urlencode

import numpy as np
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from asr_server.audio.g711 import Companding
from E2Etest.drive import recordings


def _pcm():
    return recordings.samples().astype("<i2").tobytes()


def _listen(server, **query):
    return connect(f"{server.base.replace('http', 'ws', 1)}/v1/listen?{urlencode(query)}")


def _streamed(socket, audio):
    """Send the audio and the end of the stream; return all messages."""
    for at in range(0, len(audio), 8_000):
        socket.send(audio[at : at + 8_000])
    socket.send(json.dumps({"type": "CloseStream"}))
    messages = [json.loads(message) for message in socket]
    assert socket.close_code == 1000
    return messages


def _text(server):
    files = {"file": ("x.wav", recordings.sample()[0])}
    return server.client.post("/v1/audio/transcriptions", files=files).json()["text"]


def test_a_recording_is_the_body(server):
    """Words with times, in both spellings; the language where it is detected."""
    wav = recordings.sample()[0]
    answer = server.client.post("/v1/listen?model=nova-3&utterances=true&smart_format=true", content=wav)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    (channel,) = found["results"]["channels"]
    (best,) = channel["alternatives"]
    assert (best["transcript"], channel["detected_language"]) == (_text(server), "en")
    assert " ".join(word["punctuated_word"] for word in best["words"]) == best["transcript"]
    times = [time for word in best["words"] for time in (word["start"], word["end"])]
    assert times == sorted(times)
    assert found["results"]["utterances"][0]["transcript"] in best["transcript"]
    assert found["metadata"]["duration"] == pytest.approx((len(wav) - 44) / 32_000, abs=0.01)
    stated = server.client.post("/v1/listen?language=en", content=wav).json()
    assert "detected_language" not in stated["results"]["channels"][0]


@pytest.mark.parametrize("encoding", ["linear16", "mulaw"])
def test_live_audio_has_finals_whose_words_are_those_of_the_recording(server, encoding):
    """The last message says how long the audio was, and the close is clean."""
    audio = _pcm() if encoding == "linear16" else recordings.companded(np.frombuffer(_pcm(), "<i2"), Companding.MU)
    with _listen(server, encoding=encoding, sample_rate=16_000, interim_results="true", vad_events="true") as socket:
        *results, end = _streamed(socket, audio)
    assert end["type"] == "Metadata"
    assert end["duration"] == pytest.approx(len(_pcm()) / 32_000, abs=0.01)
    finals = [each for each in results if each["type"] == "Results" and each["is_final"]]
    said = " ".join(each["channel"]["alternatives"][0]["transcript"] for each in finals).split()
    assert said
    assert encoding != "linear16" or said == _text(server).split()
    assert "SpeechStarted" in {each["type"] for each in results}
    with_text = [each for each in finals if each["channel"]["alternatives"][0]["transcript"]]
    assert all(each["channel"]["alternatives"][0]["words"] for each in with_text)
    spans = [(each["start"], each["start"] + each["duration"]) for each in finals]
    assert spans == sorted(spans)


def test_finalize_is_answered_and_the_stream_goes_on(server):
    """Also where nothing was said; keep-alives change nothing, and another message is answered with an error."""
    with _listen(server) as socket:
        for kind in ("KeepAlive", "Finalize", "Dance"):
            socket.send(json.dumps({"type": kind}))
        by_type = {each["type"]: each for each in (json.loads(socket.recv(timeout=20)) for _ in range(2))}
        assert by_type["Results"]["from_finalize"] is True
        assert by_type["Results"]["channel"]["alternatives"][0]["transcript"] == ""
        assert by_type["Error"]["variant"] == "invalid_value"
        assert _streamed(socket, _pcm())[-1]["type"] == "Metadata"


def test_without_endpointing_only_the_client_ends_an_utterance(server):
    """A pause does not; the end of the stream does."""
    pcm = _pcm() + bytes(3 * 32_000) + _pcm()
    with _listen(server, endpointing="false") as socket:
        messages = _streamed(socket, pcm)
    finals = [one for one in messages if one["type"] == "Results" and one["is_final"]]
    spoken = [one for one in finals if one["channel"]["alternatives"][0]["transcript"]]
    assert len(spoken) == 1
    assert spoken[0]["channel"]["alternatives"][0]["transcript"].split().count(_text(server).split()[0]) == 2


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"diarize": "true"}, "unsupported_value"),
        ({"redact": "pci"}, "unsupported_value"),
        ({"numerals": "true"}, "unsupported_value"),
        ({"encoding": "opus"}, "invalid_value"),
        ({"sample_rate": "1"}, "invalid_value"),
        ({"endpointing": "-1"}, "invalid_value"),
        ({"endpointing": "²"}, "invalid_value"),
        ({"endpointing": "٣٠٠"}, "invalid_value"),
        ({"endpointing": "1" * 5_000}, "invalid_value"),
        ({"language": "klingon"}, "unsupported_language"),
    ],
)
def test_what_is_not_served_refuses_the_handshake(server, query, code):
    """With the name of the option."""
    with pytest.raises(InvalidStatus) as refused, _listen(server, **query):
        pass
    assert refused.value.response.status_code == 400
    error = json.loads(refused.value.response.body)["error"]
    assert (error["code"], error["param"]) == (code, next(iter(query)))


def test_by_default_an_address_of_a_recording_is_not_fetched(server):
    """A clear error says what to do."""
    answer = server.client.post("/v1/listen", json={"url": "http://127.0.0.1/x.wav"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "url")


@pytest.mark.parametrize("head", [b"fLaC", b"OggS", b"\x1a\x45\xdf\xa3", b"RIFF\x24\x00\x00\x00WAVEfmt "])
def test_a_file_without_its_encoding_is_refused_with_the_reason(server, head):
    """Its bytes would be heard as noise. Raw audio needs no encoding."""
    with _listen(server) as socket:
        error, *_, last = _streamed(socket, head + _pcm())
    assert error["type"] == "Error"
    assert "encoding" in error["description"]
    assert (last["type"], last["duration"]) == ("Metadata", 0)
    for named in ({}, {"encoding": "linear16"}):
        with _listen(server, **named) as socket:
            assert _streamed(socket, _pcm())[-1]["type"] == "Metadata"


def test_an_empty_message_ends_the_stream(server):
    """Clients of the first version of the protocol end it so."""
    with _listen(server, encoding="linear16") as socket:
        for part in (_pcm(), b""):
            socket.send(part)
        messages = [json.loads(message) for message in socket]
        assert socket.close_code == 1000
    assert messages[-1]["type"] == "Metadata"
    assert any(message["type"] == "Results" and message["channel"]["alternatives"][0]["words"] for message in messages)
