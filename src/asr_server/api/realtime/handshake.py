"""What a client says before its socket is open: the shape it speaks, a model, a subprotocol. Not its key."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.websockets import WebSocket

from asr_server.api.edge import credentials

_PROTOCOL = "realtime"
_BETA_PROTOCOL = "openai-beta.realtime-v1"
_BETA_HEADER = "realtime=v1"


@dataclass(frozen=True, slots=True)
class Handshake:
    """`subprotocol`: the one to select. `in_browser`: it cannot see an HTTP status, so it is told on the socket."""

    beta: bool
    model: str | None
    subprotocol: str | None
    in_browser: bool


def read(socket: WebSocket) -> Handshake:
    """Raises nothing: whatever is odd is as if it were not there."""
    offered: list[str] = socket.scope.get("subprotocols") or []
    return Handshake(
        beta=_BETA_PROTOCOL in offered or _BETA_HEADER in socket.headers.get("openai-beta", ""),
        model=socket.query_params.get("model"),
        subprotocol=_PROTOCOL if _PROTOCOL in offered else None,
        in_browser=credentials.by_subprotocol(socket) is not None,
    )
