"""Where a request or a socket carries its key. Headers, subprotocols and query only; not whether the key is right."""

from __future__ import annotations

from starlette.requests import HTTPConnection

# What the keys begin with that open realtime sessions for a while.
EPHEMERAL = "ek_"
_KEY_PROTOCOL = "openai-insecure-api-key."
_BEARER = "bearer "


def presented(connection: HTTPConnection) -> str | None:
    """The key, None for none. Raises nothing: whatever is odd is as if it were not there.

    A browser's socket can set no header: its key is a subprotocol (OpenAI's way) or `token` in the query. A request's
    query is not looked at: addresses are kept in logs and histories.
    """
    is_socket = connection.scope["type"] == "websocket"
    by_protocol = by_subprotocol(connection) if is_socket else None
    by_query = connection.query_params.get("token") if is_socket else None
    return by_protocol or _bearer(connection) or connection.headers.get("api-key") or by_query or None


def by_subprotocol(connection: HTTPConnection) -> str | None:
    """The key that OpenAI's browser client puts among the subprotocols."""
    offered: list[str] = connection.scope.get("subprotocols") or []
    return next((p.removeprefix(_KEY_PROTOCOL) for p in offered if p.startswith(_KEY_PROTOCOL)), None)


def _bearer(connection: HTTPConnection) -> str | None:
    value = connection.headers.get("authorization", "")
    return value[len(_BEARER) :].strip() if value.lower().startswith(_BEARER) else None
