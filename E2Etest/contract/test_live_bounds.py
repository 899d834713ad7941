"""Peers that misbehave: nothing hangs, nothing grows, the next caller is served."""

import socket

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from E2Etest.drive.session import data, finals, open_session, receive, stream
from E2Etest.drive.wire import TEXT, frame, handshake

pytestmark = pytest.mark.websocket


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
    """And the server goes on."""
    with open_session(live_server) as peer, pytest.raises(ConnectionClosed) as closed:
        _overfill(peer)
    assert closed.value.rcvd is None or closed.value.rcvd.code == 1009
    assert finals(stream(live_server, [data(speech)]))[0][0] == said


def _overfill(peer):
    peer.send(bytes(33 * 1024 * 1024))
    while True:
        receive(peer)


def test_noise_of_full_scale_is_no_harm(live_server, speech, said):
    """Random bytes as audio: whatever the model makes of them, the session and the next one work."""
    noise = np.random.default_rng(1).bytes(320_001)
    assert stream(live_server, [noise])[-1]["ending"] == "flush"
    assert finals(stream(live_server, [data(speech)]))[0][0] == said
