"""Live audio in other encodings than 16-bit PCM: the same words, and positions in bytes of the client."""

from socket import SHUT_RDWR

import pytest
from websockets.exceptions import ConnectionClosed

from asr_server.audio import g711
from E2Etest.drive import recordings
from E2Etest.drive.session import act, data, finals, open_session, pieces, receive, stream, upto_flush

pytestmark = pytest.mark.websocket


def _encoded(speech, encoding):
    """Return the audio in this encoding, and as 16-bit samples."""
    if encoding == "pcm_f32le":
        return (speech / 32_768).astype("<f4").tobytes(), data(speech)
    law = g711.Companding.A if encoding == "pcma" else g711.Companding.MU
    codes = recordings.companded(speech, law)
    return codes, g711.decode(codes, law)


@pytest.mark.parametrize("encoding", ["pcm_f32le", "pcmu", "mulaw", "pcma"])
def test_it_is_heard_as_its_samples_also_after_an_interruption(live_server, speech, encoding):
    """The server says at which byte of the client to go on."""
    audio, pcm = _encoded(speech, encoding)
    expected = finals(stream(live_server, [pcm]))
    cut = len(audio) // 8 * 4
    with open_session(live_server, encoding=encoding) as socket:
        assert socket.hello["format"] == encoding.replace("mulaw", "pcmu")
        socket.send(audio[:cut])
        name = socket.hello["session_id"]
        act(socket, "ping")
        while receive(socket).get("status") != "pong":
            pass
        socket.socket.shutdown(SHUT_RDWR)  # without a closing frame, which would end the utterance
    with open_session(live_server, encoding=encoding, session_id=name, received=0) as socket:
        assert socket.hello["received_bytes"] == cut
        socket.send(audio[cut:])
        act(socket, "flush")
        assert finals(upto_flush(socket)) == expected


def test_half_a_sample_ends_the_connection(live_server):
    """The rest would be heard as noise."""
    with open_session(live_server, encoding="pcm_f32le") as socket:
        socket.send(bytes(6))
        refused = receive(socket)
        assert (refused["code"], refused["error"]["param"]) == ("invalid_value", "encoding")
        with pytest.raises(ConnectionClosed):
            receive(socket)


def test_another_encoding_is_refused_with_those_there_are(live_server):
    """Frames of it would be heard as noise."""
    with open_session(live_server, encoding="flac") as socket:
        assert socket.hello["code"] == "invalid_value"
        assert "pcm_f32le" in socket.hello["error"]["message"]


@pytest.mark.parametrize("form", ["packets", "ogg"])
def test_opus_is_heard(live_server, speech, said, form):
    """One packet in each frame, or an Ogg stream cut anywhere."""
    container = recordings.encoded("ogg", "libopus", speech)
    frames = recordings.packets(container) if form == "packets" else pieces(container, 1_000)
    with open_session(live_server, encoding="opus") as socket:
        for frame in frames:
            socket.send(frame)
        act(socket, "flush")
        assert [text for text, *_ in finals(upto_flush(socket))] == [said]


@pytest.mark.parametrize(
    ("query", "sent", "code"),
    [
        ({}, bytes(3_000), "invalid_audio"),
        ({"session_id": "live_1"}, b"", "unsupported_value"),
        ({"sample_rate": 7}, b"", "invalid_value"),
    ],
)
def test_what_is_no_opus_or_cannot_be_served_ends_the_connection(live_server, query, sent, code):
    """The code says why, and the server hears the next session."""
    with open_session(live_server, encoding="opus", **query) as socket:
        refused = socket.hello
        if sent:
            socket.send(sent)
            refused = receive(socket)
        assert refused["code"] == code
        with pytest.raises(ConnectionClosed):
            receive(socket)
