"""What headers and subprotocols say."""

from starlette.websockets import WebSocket

from asr_server.features.realtime.route import read_handshake


def _read(headers=(), protocols=(), query=""):
    raw = [(name.encode(), value.encode()) for name, value in headers]
    scope = {"type": "websocket", "headers": raw, "subprotocols": list(protocols), "query_string": query.encode()}
    return read_handshake(WebSocket(scope, None, None))


def test_the_model_and_the_subprotocol():
    """Taken as they are; `realtime` is the only one to select."""
    assert _read(query="model=whisper-1&intent=transcription").model == "whisper-1"
    assert _read().model is None
    assert _read(protocols=["chat"]).subprotocol is None
    assert _read(protocols=["chat", "realtime"]).subprotocol == "realtime"
