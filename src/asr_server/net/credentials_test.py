"""Where a request or a socket carries its key."""

import pytest
from starlette.requests import HTTPConnection

from asr_server.net.credentials import presented

BEARER, API_KEY = (b"authorization", b"Bearer sk-bearer"), (b"api-key", b"sk-azure")
PROTOCOLS = ["realtime", "openai-insecure-api-key.sk-protocol"]


def _connection(kind, headers=(), query=b"", subprotocols=()):
    scope = {"type": kind, "headers": list(headers), "query_string": query, "subprotocols": list(subprotocols)}
    return HTTPConnection(scope)


@pytest.mark.parametrize(
    ("kind", "how", "key"),
    [
        ("http", {"headers": [API_KEY, BEARER]}, "sk-bearer"),
        ("http", {"headers": [API_KEY], "query": b"token=sk-query"}, "sk-azure"),
        ("http", {"query": b"token=sk-query"}, None),  # an address is kept in logs and histories
        ("http", {"headers": [(b"authorization", b"bEARER  sk-bearer ")]}, "sk-bearer"),
        ("http", {"headers": [(b"authorization", b"Basic sk-bearer")]}, None),
        ("http", {"headers": [(b"authorization", b"Bearer ")]}, None),
        ("http", {"headers": [BEARER], "subprotocols": PROTOCOLS}, "sk-bearer"),
        ("websocket", {"headers": [BEARER], "query": b"token=sk-query", "subprotocols": PROTOCOLS}, "sk-protocol"),
        ("websocket", {"headers": [BEARER], "query": b"token=sk-query"}, "sk-bearer"),
        ("websocket", {"headers": [API_KEY], "query": b"token=sk-query"}, "sk-azure"),
        ("websocket", {"query": b"token=sk-query"}, "sk-query"),
        ("websocket", {"subprotocols": ["realtime"]}, None),
    ],
)
def test_a_key_is_found_where_clients_put_it(kind, how, key):
    """A socket's own place comes before the headers, and these before its address; a page knows no other."""
    assert presented(_connection(kind, **how)) == key
