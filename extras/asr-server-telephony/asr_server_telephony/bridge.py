"""The listeners of `asr-server telephony`: a WebSocket with a path for each protocol, and AudioSocket over TCP.

Each connection has a thread.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import socket
import socketserver
import struct
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from loguru import logger
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.sync.server import Server, ServerConnection, serve
from websockets.typing import Subprotocol

from asr_server_telephony.call import BridgeOptions, Call
from asr_server_telephony.message_queue import GivenUp, Message, MessageQueue, encoded
from asr_server_telephony.protocols import (
    HANGUP,
    WEBSOCKET_READERS,
    AudioSocketReader,
    BadMessage,
    Event,
    Stopped,
)

Address = tuple[str, int]  # host, and port, 0 for a free one

_MAX_MESSAGE_BYTES = 256 * 1024  # 4 s of stereo at 16 kHz; mod_audio_stream's longest buffer is far shorter
_MAX_TEXT_CHARS = 16 * 1024
_MAX_CONNECTIONS = 1_000  # of each listener, including connections without a call yet
_OPEN_TIMEOUT_S, _CLOSE_TIMEOUT_S = 10.0, 2.0
# Close codes by which the WebSocket library ends a connection for a frame.
_FRAME_CODES = {1002: "invalid_message", 1007: "invalid_message", 1009: "message_too_big"}
# Close codes for the codes that end a call; 1008 for all others.
_CLOSE_CODES = {"hangup": 1000, "shutdown": 1001, "message_too_big": 1009, "too_many_calls": 1013}
_MAX_REASON_CHARS = 100  # a close frame has room for 123 bytes
_MEDIA = Subprotocol("media")  # of Asterisk's chan_websocket


class TelephonyBridge:
    """Listens and serves from its construction, which raises `OSError`, until `close`."""

    def __init__(self, options: BridgeOptions, websocket: Address, audiosocket: Address) -> None:
        self._options = options
        self._places = threading.Semaphore(options.max_calls)
        self._stopping = False
        self._audiosocket = _AudioSocketServer(self, audiosocket)
        try:
            self._websocket = self._listen(*websocket)
        except OSError:
            self._audiosocket.server_close()
            raise
        self._threads = [threading.Thread(target=each.serve_forever) for each in (self._websocket, self._audiosocket)]
        for thread in self._threads:
            thread.start()

    @property
    def ports(self) -> tuple[int, int]:
        """Return the ports of the WebSocket and of AudioSocket; never 0."""
        return int(self._websocket.socket.getsockname()[1]), int(self._audiosocket.server_address[1])

    def close(self) -> None:
        """End all calls and wait for their last words."""
        self._stopping = True
        self._audiosocket.hang_up()
        self._websocket.shutdown()
        self._audiosocket.server_close()  # waits for its calls
        for thread in self._threads:
            thread.join()

    def allows(self, host: str) -> bool:
        """Return whether AudioSocket may connect from this address."""
        address = ipaddress.ip_address(host.partition("%")[0])
        address = getattr(address, "ipv4_mapped", None) or address
        return not self._options.allowed or any(address in network for network in self._options.allowed)

    # -- WebSocket ---------------------------------------------------------------------------------------------------

    def _listen(self, host: str, port: int) -> Server:
        log = logging.getLogger("websockets.telephony")
        log.setLevel(logging.WARNING)  # lower levels repeat what this module logs
        return serve(
            self._on_websocket,
            host,
            port,
            family=_family(host),
            process_request=self._refusal,
            subprotocols=[_MEDIA],
            select_subprotocol=lambda _, offered: _MEDIA if _MEDIA in offered else None,
            max_size=_MAX_MESSAGE_BYTES,
            open_timeout=_OPEN_TIMEOUT_S,
            close_timeout=_CLOSE_TIMEOUT_S,
            create_connection=_BoundedConnection,
            logger=log,
        )

    def _refusal(self, connection: ServerConnection, request: Request) -> Response | None:
        protocol, _ = _path(request)
        if protocol not in WEBSOCKET_READERS:
            return connection.respond(HTTPStatus.NOT_FOUND, f"The paths are /{', /'.join(WEBSOCKET_READERS)}.\n")
        # Twilio offers no header and no query: the secret comes with the start of the call.
        if protocol != "twilio" and not self._knows(_secret(request)):
            logger.warning("call refused", code="invalid_secret", protocol=protocol)
            return connection.respond(HTTPStatus.UNAUTHORIZED, "The secret of this bridge is missing or wrong.\n")
        return None

    def _on_websocket(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        protocol, query = _path(connection.request)
        try:
            reader = WEBSOCKET_READERS[protocol](query)
            begin = list(reader.begin)
        except BadMessage as error:
            logger.warning("call refused", code=error.code, protocol=protocol)
            connection.close(CloseCode.POLICY_VIOLATION, str(error))
            return

        def events(wait_s: float) -> Iterable[Event]:
            if begin:
                return [begin.pop()]
            try:
                message = connection.recv(timeout=wait_s)
            except ConnectionClosed as closed:
                return [Stopped(self._end(closed))]
            if isinstance(message, str) and len(message) > _MAX_TEXT_CHARS:
                raise BadMessage("message_too_big", f"A text may have {_MAX_TEXT_CHARS} characters.")
            return reader.read(message)

        def close(code: str, reason: str) -> None:
            said = f"{code}: {reason}" if reason else code
            connection.close(_CLOSE_CODES.get(code, CloseCode.POLICY_VIOLATION), said[:_MAX_REASON_CHARS])

        def answer(message: Message) -> None:
            try:
                connection.send(encoded(message))
            except ConnectionClosed:
                raise GivenUp("peer_gone") from None

        # Twilio and Asterisk accept no text except their own commands.
        answers = self._options.answers and protocol == "freeswitch"
        self.serve(_Peer(protocol, events, close, answer if answers else None))

    def _end(self, closed: ConnectionClosed) -> str:
        if closed.sent is not None and not closed.rcvd_then_sent:
            code = "shutdown" if self._stopping else "connection_lost"
            return _FRAME_CODES.get(closed.sent.code, code)
        return "hangup" if closed.rcvd is not None else "connection_lost"

    def _knows(self, secret: str) -> bool:
        wanted = self._options.secret
        return not wanted or hmac.compare_digest(secret.encode(errors="replace"), wanted.encode())

    # -- calls -------------------------------------------------------------------------------------------------------

    def serve(self, peer: _Peer) -> None:
        """Serve a connection until its call has ended and its last words have been reported."""
        has_place = False

        def admit(secret: str | None) -> None:
            nonlocal has_place
            if secret is not None and not self._knows(secret):
                raise BadMessage("invalid_secret", "The secret of this bridge is missing or wrong.")
            if not self._places.acquire(blocking=False):
                raise BadMessage("too_many_calls", "The bridge serves as many calls as it may.")
            has_place = True

        answers = [MessageQueue("socket", peer.answer)] if peer.answer is not None else []
        call = Call(peer.protocol, self._options.target, [*self._options.queues, *answers], admit)
        code, reason = "internal_error", ""
        try:
            code, reason = call.follow(peer.events)
            code = "shutdown" if self._stopping and code in {"hangup", "connection_lost"} else code
        finally:  # so that sessions end even if this program has a bug
            peer.close(code, reason)
            call.finish(code)
            for queue in answers:
                queue.close(0)
            if has_place:
                self._places.release()


@dataclass(frozen=True, slots=True)
class _Peer:
    """The connection of a call."""

    protocol: str
    events: Callable[[float], Iterable[Event]]  # as `Call.follow` takes it
    close: Callable[[str, str], None]  # with the code and the sentence of the reason
    answer: Callable[[Message], None] | None = None  # sends a message back


class _BoundedConnection(ServerConnection):
    """A connection that is refused if there are too many: each handshake may occupy a thread for seconds."""

    def __init__(self, sock: socket.socket, protocol: ServerProtocol, server: Server, **options: Any) -> None:
        if len(server.handler_threads) > _MAX_CONNECTIONS:
            raise ConnectionRefusedError  # the library closes the socket
        super().__init__(sock, protocol, server, **options)


class _AudioSocketServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, bridge: TelephonyBridge, address: Address) -> None:
        self.bridge = bridge
        self.address_family = _family(address[0])
        self.open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(address, _AudioSocketConnection)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        with self._lock:
            has_room = len(self.open) < _MAX_CONNECTIONS
            if has_room and self.bridge.allows(client_address[0]):
                self.open.add(request)
                return True
        logger.warning("call refused", code="address_not_allowed" if has_room else "too_many_calls")
        return False

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self.open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """Stop listening, and end the connections."""
        self.shutdown()
        with self._lock:
            for connection in self.open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RD)


class _AudioSocketConnection(socketserver.BaseRequestHandler):
    server: _AudioSocketServer
    request: socket.socket

    def handle(self) -> None:
        reader = AudioSocketReader()

        def events(wait_s: float) -> Iterable[Event]:
            ends_s = time.monotonic() + wait_s  # the deadline of the whole frame
            header = self._received(3, ends_s)
            if not header:
                return [Stopped()]
            kind, size = struct.unpack(">BH", header) if len(header) == 3 else (0, 1)
            payload = self._received(size, ends_s)
            return [reader.read(kind, payload) if len(payload) == size else Stopped("connection_lost")]

        def close(_code: str, _reason: str) -> None:
            with suppress(OSError):
                self.request.sendall(struct.pack(">BH", HANGUP, 0))
                self.request.shutdown(socket.SHUT_RDWR)

        self.server.bridge.serve(_Peer("audiosocket", events, close))

    def _received(self, size: int, ends_s: float) -> bytes:
        """Return `size` bytes, or fewer if the connection ends. Raises `TimeoutError`."""
        received = bytearray()
        while len(received) < size:
            self.request.settimeout(max(0.001, ends_s - time.monotonic()))
            if not (piece := self.request.recv(size - len(received))):
                break
            received += piece
        return bytes(received)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _path(request: Request) -> tuple[str, dict[str, str]]:
    """Return the name of the protocol, and the query."""
    address = urlsplit(request.path)
    return address.path.strip("/"), dict(parse_qsl(address.query))


def _secret(request: Request) -> str:
    """Return the secret from `Authorization`, a token or the password of any user, or from the query."""
    scheme, _, value = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        with suppress(ValueError):
            return b64decode(value.strip(), validate=True).decode(errors="replace").partition(":")[2]
    return _path(request)[1].get("token", "")
