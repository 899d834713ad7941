"""What a client says before its socket is open: a key, the shape it speaks, a model. Headers and subprotocols only."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.websockets import WebSocket

_PROTOCOL = "realtime"
_KEY_PROTOCOL = "openai-insecure-api-key."
_BETA_PROTOCOL = "openai-beta.realtime-v1"
_BETA_HEADER = "realtime=v1"
_BEARER = "bearer "


@dataclass(frozen=True, slots=True)
class Handshake:
    """`subprotocol`: the one to select. `in_browser`: it cannot see an HTTP status, so it is told on the socket."""

    key: str | None
    beta: bool
    model: str | None
    subprotocol: str | None
    in_browser: bool


def read(socket: WebSocket) -> Handshake:
    """Raises nothing: whatever is odd is as if it were not there."""
    offered: list[str] = socket.scope.get("subprotocols") or []
    by_protocol = next((p.removeprefix(_KEY_PROTOCOL) for p in offered if p.startswith(_KEY_PROTOCOL)), None)
    return Handshake(
        key=by_protocol or _header_key(socket),
        beta=_BETA_PROTOCOL in offered or _BETA_HEADER in socket.headers.get("openai-beta", ""),
        model=socket.query_params.get("model"),
        subprotocol=_PROTOCOL if _PROTOCOL in offered else None,
        in_browser=by_protocol is not None,
    )


def _header_key(socket: WebSocket) -> str | None:
    bearer = socket.headers.get("authorization", "")
    if bearer.lower().startswith(_BEARER):
        return bearer[len(_BEARER) :].strip() or None
    return socket.headers.get("api-key")
