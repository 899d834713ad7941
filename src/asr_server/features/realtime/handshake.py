"""What the opening request of a realtime socket asks for: the protocol version, the model, the subprotocol."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.websockets import WebSocket

from asr_server.net import credentials

_BETA_PROTOCOL = "openai-beta.realtime-v1"
_BETA_HEADER = "realtime=v1"


@dataclass(frozen=True, slots=True)
class Handshake:
    """`beta`: the client speaks the beta protocol. `subprotocol`: the one to select."""

    beta: bool
    model: str | None
    subprotocol: str | None


def read(socket: WebSocket) -> Handshake:
    """The handshake of this socket. Raises nothing: an unknown value counts as absent."""
    offered: list[str] = socket.scope.get("subprotocols") or []
    return Handshake(
        beta=_BETA_PROTOCOL in offered or _BETA_HEADER in socket.headers.get("openai-beta", ""),
        model=socket.query_params.get("model"),
        subprotocol=credentials.realtime_subprotocol(socket),
    )
