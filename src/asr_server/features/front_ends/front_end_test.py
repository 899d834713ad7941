"""The handshakes of live sessions that one process relays to another, and what a client may claim in one."""

from contextlib import closing

import pytest

from asr_server.features.front_ends.front_end import Relay
from asr_server.features.front_ends.ledger import FRONT_END, Ledger


@pytest.fixture
def ledger(tmp_path):
    """The ledger of process 1."""
    made = Ledger.make(tmp_path / "ledger.db", 1)
    made.add(1, FRONT_END)
    yield made
    made.close()


class _App:
    """The app of the process, which keeps what reaches it."""

    def __init__(self):
        self.scopes = []

    async def __call__(self, scope, receive, send):
        self.scopes.append(scope)


def _handshake(*headers, query=b""):
    return {
        "type": "websocket",
        "path": "/ws/transcribe",
        "query_string": query,
        "headers": [(b"host", b"here"), *headers],
        "client": ("192.0.2.7", 5_000),
    }


async def test_another_process_says_where_the_client_is(ledger):
    """The limits of a caller without a key are those of its address."""
    app = _App()
    value = f"{ledger.secret} 198.51.100.3".encode()
    await Relay(app, ledger)(_handshake((b"x-asr-server-client", value)), None, None)
    assert app.scopes[0]["client"] == ("198.51.100.3", 0)
    assert app.scopes[0]["headers"] == [(b"host", b"here")]


@pytest.mark.parametrize("value", [b"", b"198.51.100.3", b" 198.51.100.3", b"0" * 32 + b" 198.51.100.3"])
async def test_a_client_cannot_say_that_it_is_elsewhere(ledger, value):
    """Without the secret of the server the header means nothing, and nobody behind sees it."""
    app = _App()
    await Relay(app, ledger)(_handshake((b"x-asr-server-client", value)), None, None)
    assert app.scopes == [_handshake()]


@pytest.mark.parametrize("query", [b"", b"session_id=", b"session_id=nobody", b"session_id=own"])
async def test_what_no_other_process_keeps_stays_here(ledger, query):
    """A new session, one that nobody knows and one of this process are served here."""
    ledger.found(1, "/here")
    ledger.note_session("own", kept=True)
    app = _App()
    await Relay(app, ledger)(_handshake(query=query), None, None)
    assert app.scopes == [_handshake(query=query)]


async def test_a_session_whose_process_has_just_gone_is_unknown_here(ledger, tmp_path):
    """Its client is told so by this process, and goes on with what it holds of the session."""
    ledger.add(2, FRONT_END)
    ledger.found(2, str(tmp_path / "nobody"))
    with closing(Ledger(tmp_path / "ledger.db", 2)) as other:
        other.note_session("theirs", kept=True)
    app = _App()
    scope = {**_handshake(query=b"session_id=theirs"), "raw_path": b"/ws/transcribe", "subprotocols": []}
    await Relay(app, ledger)(scope, None, None)
    assert app.scopes == [scope]
