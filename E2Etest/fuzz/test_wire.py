"""Bytes that are no HTTP and frames that are no WebSocket: below what any client library would send."""

import socket
import struct
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from E2Etest.drive.wire import handshake, post
from E2Etest.fuzz.effort import effort

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.guarantee("fuzzing")]

TIMEOUT_S = 30
KEY = b"Authorization: Bearer sk-canary-first\r\n"
FORM = (
    b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\ndemo\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n--b--\r\n'
)
CHUNKED, JSON = b"Transfer-Encoding: chunked\r\n", b'{"expires_after":{"seconds":100}}'
REQUESTS = [
    b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + KEY + b"\r\n",
    b"GET /v1/models/x%2Fy?z=%ff HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n" + KEY + b"\r\n",
    post(FORM, headers=KEY),
    post(b"%x\r\n%b\r\n0\r\n\r\n" % (len(FORM), FORM), path="/v1/jobs", headers=KEY + CHUNKED, length=None),
    post(JSON, path="/v1/realtime/client_secrets", headers=KEY, media_type=b"application/json"),
]
UPGRADE = handshake("/ws/transcribe?language=en", b"Sec-WebSocket-Protocol: realtime\r\n" + KEY)


@st.composite
def mutated(draw, originals):
    """A right request with some bytes changed, removed or added."""
    data = bytearray(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(0, 5))):
        at = draw(st.integers(0, len(data)))
        size = draw(st.integers(0, 3))
        data[at : at + size] = draw(
            st.binary(max_size=6) | st.sampled_from([b"\r\n", b"\0", b"%", b"\xff", b":", b"-1", b"9" * 30, b"../"])
        )
    return bytes(data)


def _exchange(server, data, *, more=b""):
    """Send, end the sending side, and read all of the answer."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S) as line:
        line.sendall(data)
        if more:
            head = line.recv(4_096)
            if not head.startswith(b"HTTP/1.1 101"):
                return head
            line.sendall(more)
        line.shutdown(socket.SHUT_WR)
        answer = b""
        with suppress(ConnectionResetError):
            while piece := line.recv(65_536):
                answer += piece
        return answer


def _frame(opcode, payload, *, final=True, reserved=0, masked=True):
    """A client's frame."""
    first = (final << 7) | (reserved << 4) | opcode
    size = len(payload)
    length = struct.pack("!B", size) if size < 126 else struct.pack("!BH", 126, size)
    length = bytes([length[0] | (masked << 7)]) + length[1:]
    mask = b"mask"[: 4 * masked]
    body = bytes(b ^ mask[i % 4] for i, b in enumerate(payload)) if masked else payload
    return bytes([first]) + length + mask + body


FRAMES = st.builds(
    _frame,
    st.sampled_from([0, 1, 2, 3, 8, 9, 10, 15]),
    st.binary(max_size=300),
    final=st.booleans(),
    reserved=st.sampled_from([0, 0, 0, 1, 7]),
    masked=st.sampled_from([True, True, True, False]),
)


@pytest.mark.timeout(0)
def test_bytes_that_are_nearly_requests_or_handshakes(guarded, timed):
    """Whatever is answered is no 5xx, and the connection ends."""

    @effort(400)
    @given(mutated(REQUESTS) | mutated([UPGRADE]) | st.binary(max_size=200))
    @example(REQUESTS[2][:-20])  # the caller leaves in the middle of its body
    @example(UPGRADE.replace(b"language=en", b"language=\xff"))
    @example(UPGRADE.replace(b"/ws/transcribe", b"/ws/\xc3\xa4"))
    @example(UPGRADE.replace(b"Host: localhost", b"Host: \xff"))
    def check(data):
        with timed():
            assert b"HTTP/1.1 5" not in _exchange(guarded, data)

    check()


@pytest.mark.timeout(0)
def test_frames_that_are_none(guarded, timed):
    """Wrong opcodes, reserved bits, no mask, bad UTF-8, fragments, a frame that never ends."""

    @effort(150)
    @given(st.lists(FRAMES, max_size=8).map(b"".join) | st.binary(max_size=100))
    @example(_frame(1, b"\xff\xfe"))
    @example(_frame(1, b"\xff", final=False) + _frame(0, b"\xff"))
    @example(b"\x82\xff\x7f" + b"\xff" * 7)
    def check(frames):
        with timed():
            _exchange(guarded, UPGRADE, more=frames)

    check()
