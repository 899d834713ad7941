"""Live audio that a conversation cannot state: Opus, and peers that misbehave."""

import socket
from contextlib import suppress

import pytest
from websockets.exceptions import ConnectionClosed

from E2Etest.drive import recordings
from E2Etest.drive.session import act, data, finals, open_session, pieces, receive, stream, upto_flush
from E2Etest.drive.wire import TEXT, frame, handshake

pytestmark = pytest.mark.websocket


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


@pytest.mark.uvicorn
def test_what_is_sent_together_with_the_handshake_is_heard(live_server, speech, said):
    """A client should wait for the answer to it. One that does not loses nothing."""
    sent = handshake("/ws/transcribe?use_server_vad=false") + frame(data(speech)) + frame(b'{"action":"flush"}', TEXT)
    received = b""
    with socket.create_connection(("127.0.0.1", live_server.port), timeout=60) as line:
        line.sendall(sent)
        while b'"ending":"flush"' not in received.replace(b" ", b""):
            piece = line.recv(1 << 16)
            assert piece, received
            received += piece
    assert said.encode() in received


@pytest.mark.uvicorn
def test_a_frame_over_the_limit_closes_with_1009(live_server, said, speech):
    """The server still serves others."""
    with open_session(live_server) as peer, suppress(ConnectionClosed):
        peer.send(bytes(33 * 1024 * 1024))
        while True:
            receive(peer)
    assert peer.close_code in (1006, 1009)  # the code may be lost with the connection
    assert finals(stream(live_server, [data(speech)]))[0][0] == said
