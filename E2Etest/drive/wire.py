"""Requests and WebSocket frames as bytes over a bare connection, and the answers to them."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

END = b"--b--\r\n"
FILE = b'name="file"; filename="a.wav"'
_TIMEOUT_S = 60.0
_PAUSE_S = 0.05
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10  # opcodes of WebSocket frames


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer."""

    status: int
    headers: dict[str, str]  # the last value of each, by names in lower case
    body: bytes  # a body in chunks is left so


def form(audio: bytes, disposition: bytes = FILE, **fields: str) -> bytes:
    """Return a multipart body with the boundary `b`: the fields, and the recording at last."""
    parts = [(b'name="%b"' % name.encode(), text.encode()) for name, text in fields.items()]
    part = b"--b\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n"
    return b"".join(part % one for one in [*parts, (disposition, audio)]) + END


def post(
    body: bytes,
    *,
    path: str = "/v1/audio/transcriptions",
    version: bytes = b"1.1",
    headers: bytes = b"",
    length: int | None = -1,
    media_type: bytes = b"multipart/form-data; boundary=b",
) -> bytes:
    """Return a request whose connection is closed after it. `length`: by default the body's; None: no such header."""
    declared = b"" if length is None else b"Content-Length: %d\r\n" % (len(body) if length < 0 else length)
    close = b"" if version == b"1.0" else b"Connection: close\r\n"
    head = b"POST %b HTTP/%b\r\nHost: localhost\r\nContent-Type: %b\r\n" % (path.encode(), version, media_type)
    return head + declared + close + headers + b"\r\n" + body


def handshake(path: str, headers: bytes = b"") -> bytes:
    return (
        b"GET %b HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n%b\r\n"
    ) % (path.encode(), headers)


def frame(body: bytes, opcode: int = BINARY, *, is_last: bool = True) -> bytes:
    """Return a client's frame, its mask all zeros. `is_last`: it is the last one of its message."""
    size = len(body)
    if size < 126:
        length = bytes([0x80 | size])
    elif size < 65_536:
        length = bytes([0x80 | 126]) + size.to_bytes(2, "big")
    else:
        length = bytes([0x80 | 127]) + size.to_bytes(8, "big")
    return bytes([0x80 * is_last | opcode]) + length + bytes(4) + body


def exchange(server, *pieces: bytes, ends: bool = False) -> bytes:
    """Send the pieces one after the other, and read to the end of the connection. `ends`: end the sending side."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=_TIMEOUT_S) as line:
        for number, piece in enumerate(pieces):
            if number:
                time.sleep(_PAUSE_S)  # or the system would join them
            line.sendall(piece)
        if ends:
            line.shutdown(socket.SHUT_WR)
        received = b""
        while piece := line.recv(65_536):
            received += piece
        return received


def answer(server, *pieces: bytes, ends: bool = False) -> Answer:
    """Return the answer to an exchange."""
    head, _, body = exchange(server, *pieces, ends=ends).partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return Answer(int(first.split()[1]), headers, body)
