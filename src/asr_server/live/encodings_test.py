"""Floats of live audio that no speech has."""

import numpy as np

from asr_server.live.encodings import LiveEncodings


async def test_floats_beyond_the_range_are_clipped_and_no_number_is_silence():
    """Also infinite ones. The rest of the query stays."""
    sent = np.array([np.nan, 2.0, -2.0, 0.5, np.inf, -np.inf, 3e38], "<f4")
    heard = {}

    async def app(scope, receive, send):
        heard.update(query=scope["query_string"], pcm=(await receive())["bytes"])

    async def receive():
        return {"type": "websocket.receive", "bytes": sent.tobytes()}

    scope = {"type": "websocket", "path": "/ws/transcribe", "query_string": b"encoding=pcm_f32le&language=en"}
    await LiveEncodings(app)(scope, receive, None)
    assert heard["query"] == b"language=en"
    assert np.frombuffer(heard["pcm"], "<i2").tolist() == [0, 32767, -32768, 16384, 32767, -32768, 32767]
