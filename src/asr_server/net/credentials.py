"""Finds the key in a request or a socket's handshake. `access.py` checks whether it is valid."""

from __future__ import annotations

from starlette.requests import HTTPConnection

# The prefix of ephemeral keys.
EPHEMERAL = "ek_"
_REALTIME_PROTOCOL = "realtime"
_KEY_PROTOCOL = "openai-insecure-api-key."
_BEARER = "bearer "


def presented(connection: HTTPConnection) -> str | None:
    """Return the key that the caller sent, or None. A malformed header counts as absent.

    A browser's socket cannot set a header: its key is a subprotocol, as OpenAI's client sends it, or `token` in the
    query. The query of an HTTP request is not read, since URLs are kept in logs and histories.
    """
    is_socket = connection.scope["type"] == "websocket"
    by_protocol = by_subprotocol(connection) if is_socket else None
    by_query = connection.query_params.get("token") if is_socket else None
    return by_protocol or _bearer(connection) or connection.headers.get("api-key") or by_query or None


def by_subprotocol(connection: HTTPConnection) -> str | None:
    """Return the key that OpenAI's browser client puts among the subprotocols, or None."""
    offered: list[str] = connection.scope.get("subprotocols") or []
    return next((p.removeprefix(_KEY_PROTOCOL) for p in offered if p.startswith(_KEY_PROTOCOL)), None)


def realtime_subprotocol(connection: HTTPConnection) -> str | None:
    """Return the subprotocol to select for a socket: OpenAI's if the client offers it, else None."""
    offered: list[str] = connection.scope.get("subprotocols") or []
    return _REALTIME_PROTOCOL if _REALTIME_PROTOCOL in offered else None


def _bearer(connection: HTTPConnection) -> str | None:
    value = connection.headers.get("authorization", "")
    return value[len(_BEARER) :].strip() if value.lower().startswith(_BEARER) else None
