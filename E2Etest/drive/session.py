"""The client of the live tests: a raw socket, sending in pieces, reading up to the final that answers a flush."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import contextmanager

import av
import numpy as np
from websockets.sync.client import connect

TIMEOUT_S = 180  # a worker that is stopped is noticed after 20 s, and another one started


def connected(server, path, *, key="", **options):
    """Return an open socket to any path, which sends `key` in its header; its first message is still to come."""
    url = path if path.startswith("ws") else server.base.replace("http", "ws", 1) + path
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    usual = {"max_size": None, "compression": None, "open_timeout": TIMEOUT_S, "additional_headers": headers}
    return connect(url, **usual | options)


@contextmanager
def open_session(server, **query):
    """An open live session behind its first message, which is kept as `socket.hello`."""
    asked = "&".join(f"{name}={value}" for name, value in query.items())
    with connected(server, f"{server.live_url}?{asked}", key=server.key) as socket:
        socket.hello = receive(socket)
        yield socket


def receive(socket) -> dict:
    return json.loads(socket.recv(timeout=TIMEOUT_S))


def act(socket, action, **more) -> None:
    socket.send(json.dumps({"action": action, **more}))


def upto_flush(socket) -> list[dict]:
    """All messages up to the final that answers a flush."""
    messages = []
    while not messages or messages[-1].get("ending") != "flush":
        messages.append(receive(socket))
        assert "error" not in messages[-1], messages[-1]
    return messages


def finals(messages) -> list[tuple]:
    """Return the part of each final that a client keeps, without empty ones."""
    return [(m["text"], m["start"], m["end"], m["ending"]) for m in messages if m.get("is_final") and m["text"]]


def stream(server, pieces: Iterable[bytes], **query) -> list[dict]:
    """A whole session: the pieces, a flush, and all messages."""
    with open_session(server, **query) as socket:
        for piece in pieces:
            socket.send(piece)
        act(socket, "flush")
        return upto_flush(socket)


def data(pcm: np.ndarray) -> bytes:
    return pcm.astype("<i2").tobytes()


def pieces(body: bytes, size: int) -> list[bytes]:
    return [body[at : at + size] for at in range(0, len(body), size)]


def pcm_of(path) -> np.ndarray:
    with av.open(str(path)) as file:
        convert = av.AudioResampler("s16", "mono", 16_000)
        frames = [part for frame in file.decode(audio=0) for part in convert.resample(frame)]
        return np.concatenate([part.to_ndarray()[0] for part in [*frames, *convert.resample(None)]]).astype(np.int16)
