"""How a caller of the realtime socket is turned away at the door, before a session is there."""

from __future__ import annotations

import secrets

from starlette.websockets import WebSocket

from asr_server.api import errors as error_table
from asr_server.api import websocket_io
from asr_server.api.realtime import handshake
from asr_server.core.errors import AsrError, ForeignHost, ForeignOrigin


async def reject_websocket(socket: WebSocket, error: AsrError) -> None:
    """By HTTP status; or on the socket where a browser showed a key and cannot see a status.

    A page that may not call at all is told nothing: its socket never opens.
    """
    hands = handshake.read(socket)
    if isinstance(error, ForeignOrigin | ForeignHost) or not hands.in_browser:
        await socket.send_denial_response(error_table.respond(error))
        return
    await socket.accept(subprotocol=hands.subprotocol)
    wire = error_table.TABLE[error.code]
    told = {"type": wire.type, "code": error.code, "message": error.message, "param": None, "event_id": None}
    message = {"type": "error", "event_id": f"event_{secrets.token_hex(6)}", "error": told}
    await websocket_io.close_with_error(socket, wire.ws_close, f"{wire.type}.{error.code}", message)
