"""Live audio that a conversation cannot state: Opus, peers that misbehave, and many sessions at once."""

import asyncio
import socket
from itertools import product

import numpy as np
import pytest
import soundfile
from websockets.exceptions import ConnectionClosed

from E2Etest.drive import recordings
from E2Etest.drive.session import act, data, finals, open_session, pieces, receive, stream, upto_flush
from E2Etest.drive.wire import TEXT, frame, handshake
from E2Etest.live.crowd import spoken

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


SESSIONS = 12


@pytest.mark.slow("has many sessions at once")
@pytest.mark.demo_server
async def test_many_sessions_get_each_their_own_words(live_server):
    """All at once, each says an English and a Chinese sentence in a sequence that no other session has."""
    chinese = next(clip for clip in recordings.clips() if clip.language == "Chinese")
    said = (recordings.sample()[1], chinese.text)
    sounds = (recordings.samples(), soundfile.read(chinese.path, dtype="int16")[0])
    orders = [order for length in (1, 2, 3, 4) for order in product((0, 1), repeat=length)][-SESSIONS:]
    pause = np.zeros(14_400, np.int16)
    bodies = [data(np.concatenate([*(sounds[which] for which in order), pause])) for order in orders]
    ready = asyncio.Barrier(SESSIONS)
    found = await asyncio.gather(*(spoken(live_server, body, ready, "?endpointing=manual") for body in bodies))
    expected = ["".join(said[which] for which in order) for order in orders]
    assert [_plain(text) for text in found] == [_plain(text) for text in expected]


def _plain(text):
    return text.replace(" ", "")
