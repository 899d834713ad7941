"""Sockets through the gateway, frame by frame, with a scripted worker behind it."""

import time

import pytest
from starlette.testclient import WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from asr_server.features.gateway.conftest import KEYS
from asr_server.features.gateway.restart_policy import WorkerState

PATH = "/v1/realtime?intent=transcription"


async def _echo(process, request, receive, send):
    """Say every frame again; "close" closes with a code, "die" ends the process."""
    await send({"type": "websocket.accept", "subprotocol": request.headers.get("sec-websocket-protocol")})
    while (message := await receive())["type"] == "websocket.receive":
        if message.get("text") == "close":
            await send({"type": "websocket.close", "code": 4008, "reason": "enough"})
        elif message.get("text") == "die":
            process.kill()
        elif message.get("bytes") is not None:
            await send({"type": "websocket.send", "bytes": message["bytes"]})
        else:
            await send({"type": "websocket.send", "text": message["text"]})


def _until(holds):
    give_up_s = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < give_up_s, "never happened"
        time.sleep(0.01)


@pytest.mark.parametrize("path", [PATH, "/ws/speech?x=y"])
def test_frames_pass_both_ways_and_the_worker_knows_who_asks(workers, gateway_with, path):
    """Text and bytes, empty ones too; path, query, key and subprotocol are those of the client."""
    workers.on_socket = _echo
    headers, protocols = {"api-key": KEYS[1]}, ["realtime"]
    client = gateway_with(api_keys=",".join(KEYS))
    with client.socket(path, headers=headers, subprotocols=protocols) as socket:
        assert socket.accepted_subprotocol == "realtime"
        for text in ("hello", ""):
            socket.send_text(text)
            assert socket.receive_text() == text
        socket.send_bytes(b"\x00\xff")
        assert socket.receive_bytes() == b"\x00\xff"
    (request,) = workers.requests
    assert f"{request.path}?{request.query}" == path
    assert request.headers["api-key"] == KEYS[1]


def test_the_workers_close_code_and_reason_are_the_clients(workers, client):
    """A client tells by them whether to come back."""
    workers.on_socket = _echo
    with client.socket(PATH) as socket:
        socket.send_text("close")
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_text()
    assert (closed.value.code, closed.value.reason) == (4008, "enough")


def test_a_worker_that_dies_closes_the_socket_as_that(workers, client):
    """1012, with the code of the error table as its reason."""
    workers.on_socket = _echo
    with client.socket(PATH) as socket:
        socket.send_text("die")
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_text()
    assert (closed.value.code, closed.value.reason) == (1012, "worker_lost")


def test_a_refused_handshake_is_refused_in_the_same_words(workers, client):
    """Status, headers and body of the worker's answer."""

    async def refuse(process, request, receive, send):
        headers = [(b"retry-after", b"7"), (b"content-type", b"application/json")]
        await send({"type": "websocket.http.response.start", "status": 429, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": b'{"error":{}}'})

    workers.on_socket = refuse
    with pytest.raises(WebSocketDenialResponse) as denied, client.socket(PATH):
        pass
    assert (denied.value.status_code, denied.value.content) == (429, b'{"error":{}}')
    assert denied.value.headers["retry-after"] == "7"


def test_an_open_socket_keeps_its_worker(workers, gateway_with):
    """However silent it is; when it is closed the idle time begins, and then the worker is ended."""
    workers.on_socket = _echo
    client = gateway_with(idle_timeout=0.1)
    worker = client.worker
    with client.socket(PATH) as socket:
        time.sleep(0.6)
        assert worker.state is WorkerState.RUNNING
        socket.send_text("still here")
        assert socket.receive_text() == "still here"
    _until(lambda: worker.state is WorkerState.STOPPED)
    assert worker.starts == 1
