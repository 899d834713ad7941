"""The opening request of a realtime socket: its protocol version, model and subprotocol."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.websockets import WebSocket

from asr_server.net import credentials

_BETA_PROTOCOL = "openai-beta.realtime-v1"
_BETA_HEADER = "realtime=v1"


@dataclass(frozen=True, slots=True)
class Handshake:
    """The properties that the opening request asks for."""

    beta: bool  # the client speaks the beta protocol
    model: str | None
    subprotocol: str | None  # the one to select


def read(socket: WebSocket) -> Handshake:
    """Return the handshake of this socket. An unknown value counts as absent."""
    offered: list[str] = socket.scope.get("subprotocols") or []
    return Handshake(
        beta=_BETA_PROTOCOL in offered or _BETA_HEADER in socket.headers.get("openai-beta", ""),
        model=socket.query_params.get("model"),
        subprotocol=credentials.realtime_subprotocol(socket),
    )
