"""The requests and handshakes that one process relays to another, and what a client may claim in one."""

import asyncio
import json
import socket
from contextlib import asynccontextmanager, closing

import pytest
import uvicorn

from asr_server.features.front_ends.front_end import Relay
from asr_server.features.front_ends.ledger import FRONT_END, Ledger
from asr_server.features.sharing import sharing
from asr_server.features.sharing.sharing import digest
from asr_server.features.sharing.sharing_test import Session


@pytest.fixture
def ledger(tmp_path):
    """The ledger of process 1."""
    made = Ledger.make(tmp_path / "ledger.db", 1)
    made.add(1, FRONT_END)
    yield made
    made.close()


@pytest.fixture
def other(ledger, tmp_path):
    """The ledger of process 2, whose socket nobody listens at."""
    with closing(Ledger(tmp_path / "ledger.db", 2)) as made:
        made.add(2, FRONT_END)
        made.found(2, str(tmp_path / "other"))
        yield made


class _App:
    """The app of a process, which keeps what reaches it. Its answer has one event, and ends when the reader leaves."""

    def __init__(self):
        self.scopes = []
        self.left = asyncio.Event()

    async def __call__(self, scope, receive, send):
        self.scopes.append(scope)
        if send is not None:
            headers = [(b"content-type", b"text/event-stream"), (b"vary", b"Origin"), (b"x-request-id", b"theirs")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b'data: "one"\n\n', "more_body": True})
            while (await receive())["type"] != "http.disconnect":
                pass
            self.left.set()


def _handshake(*headers, query=b""):
    return {
        "type": "websocket",
        "path": "/ws/transcribe",
        "query_string": query,
        "headers": [(b"host", b"here"), *headers],
        "client": ("192.0.2.7", 5_000),
    }


def _request(path="/v1/live/shared/token/events", *headers, method="GET"):
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"language=de",
        "headers": [(b"host", b"here"), *headers],
        "client": ("192.0.2.7", 5_000),
    }


@pytest.mark.parametrize("asked", [_handshake, lambda header: _request("/v1/live/shared/token/events", header)])
async def test_another_process_says_where_the_client_is(ledger, asked):
    """The limits of a caller without a key are those of its address."""
    app = _App()
    value = f"{ledger.secret} 198.51.100.3".encode()
    await Relay(app, ledger)(asked((b"x-asr-server-client", value)), None, None)
    assert app.scopes[0]["client"] == ("198.51.100.3", 0)
    assert app.scopes[0]["headers"] == [(b"host", b"here")]


@pytest.mark.parametrize("value", [b"", b"198.51.100.3", b" 198.51.100.3", b"0" * 32 + b" 198.51.100.3"])
@pytest.mark.parametrize("asked", [_handshake, lambda *headers: _request("/v1/live/shared/token/events", *headers)])
async def test_a_client_cannot_say_that_it_is_elsewhere(ledger, asked, value):
    """Without the secret of the server the header means nothing, and nobody behind sees it."""
    app = _App()
    await Relay(app, ledger)(asked((b"x-asr-server-client", value)), None, None)
    assert app.scopes == [asked()]


@pytest.mark.parametrize("query", [b"", b"session_id=", b"session_id=nobody", b"session_id=own"])
async def test_what_no_other_process_keeps_stays_here(ledger, query):
    """A new session, one that nobody knows and one of this process are served here."""
    ledger.found(1, "/here")
    ledger.note_session("own", kept=True)
    app = _App()
    await Relay(app, ledger)(_handshake(query=query), None, None)
    assert app.scopes == [_handshake(query=query)]


@pytest.mark.parametrize("path", ["/v1/live/own/share", "/v1/live/nobody/share", "/v1/live/theirs", "/v1/theirs/share"])
async def test_a_request_about_no_session_of_another_process_stays_here(ledger, other, path):
    """The session may be this process' own or nobody's, and the path may be another one."""
    ledger.found(1, "/here")
    ledger.note_session("own", kept=True)
    other.note_session("theirs", kept=True)
    app = _App()
    await Relay(app, ledger)(_request(path), None, None)
    assert app.scopes == [_request(path)]


async def test_a_session_whose_process_has_just_gone_is_unknown_here(ledger, other):
    """Its client is told so by this process, and goes on with what it holds of the session."""
    other.note_session("theirs", kept=True)
    app = _App()
    scope = {**_handshake(query=b"session_id=theirs"), "raw_path": b"/ws/transcribe", "subprotocols": []}
    await Relay(app, ledger)(scope, None, None)
    assert app.scopes == [scope]


class _Reader:
    """A client of this process: what it is sent, and whether it has left."""

    def __init__(self):
        self.messages = asyncio.Queue()
        self.left = asyncio.Event()
        self._asks = True

    async def receive(self):
        if self._asks:
            self._asks = False
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def begun(self):
        """Return the beginning of the answer, and its first event."""
        async with asyncio.timeout(10):
            return await self.messages.get(), (await self.messages.get())["body"]

    @asynccontextmanager
    async def asking(self, relay, scope):
        """Ask within the block, and wait for the end after it."""
        asking = asyncio.create_task(relay(scope, self.receive, self.messages.put))
        try:
            yield
            async with asyncio.timeout(10):
                await asking
        finally:
            asking.cancel()


@asynccontextmanager
async def _serving(app, ledger, path):
    """Serve the app of another process at its socket."""
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(path)
        listener.listen()
        config = uvicorn.Config(Relay(app, ledger), interface="asgi3", lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        yield
        server.should_exit = True
        await serving


@pytest.mark.parametrize(
    "path", ["/v1/live/shared/token/events", "/v1/live/theirs/share", "/openai/v1/live/theirs/share/x"]
)
async def test_a_request_is_answered_by_the_process_that_keeps_the_session(ledger, other, tmp_path, path):
    """The process gets the client's address and all that was sent; its answer passes as it comes, and ends when the
    reader leaves."""
    other.note_session(digest("token"), kept=True)
    other.note_session("theirs", kept=True)
    here, there, reader = _App(), _App(), _Reader()
    async with _serving(there, other, str(tmp_path / "other")):
        async with reader.asking(Relay(here, ledger), _request(path, (b"last-event-id", b"7"))):
            begin, event = await reader.begun()
            assert (begin["status"], event) == (200, b'data: "one"\n\n')
            assert {(b"vary", b"Origin"), (b"x-request-id", b"theirs")} <= set(begin["headers"])
            reader.left.set()
        async with asyncio.timeout(10):
            await there.left.wait()
    (scope,) = there.scopes
    assert (scope["path"], scope["query_string"], scope["client"]) == (path, b"language=de", ("192.0.2.7", 0))
    assert (b"last-event-id", b"7") in scope["headers"]
    assert here.scopes == []


async def test_readers_of_others_sessions_are_cut_off_where_their_own_process_is_replaced(ledger, other, tmp_path):
    """The stream ends with an error, and its reader goes on at another process."""
    other.note_session(digest("token"), kept=True)
    there, reader = _App(), _Reader()
    relay = Relay(_App(), ledger)
    async with _serving(there, other, str(tmp_path / "other")), reader.asking(relay, _request()):
        await reader.begun()
        await relay.drain()
        async with asyncio.timeout(10):
            last = await reader.messages.get()
            await there.left.wait()
    assert json.loads(last["body"].removeprefix(b"data: "))["error"]["code"] == "worker_lost"
    assert not last["more_body"]


async def test_readers_of_others_sessions_stay_where_the_whole_server_ends(ledger, other, tmp_path):
    """They get the last words of the session from the process that has it."""
    other.note_session(digest("token"), kept=True)
    reader, relay = _Reader(), Relay(_App(), ledger)
    async with _serving(_App(), other, str(tmp_path / "other")), reader.asking(relay, _request()):
        await reader.begun()
        other.drain()
        await relay.drain()
        await asyncio.sleep(0.1)
        assert reader.messages.empty()
        reader.left.set()


async def test_a_request_whose_process_has_just_gone_is_told_to_come_back(ledger, other):
    """Nothing listens there any more, and the supervisor notices while the request waits."""
    other.note_session("theirs", kept=True)
    reader = _Reader()
    async with reader.asking(Relay(_App(), ledger), _request("/v1/live/theirs/share", method="POST")):
        await asyncio.sleep(0.1)
        ledger.remove(2)
        async with asyncio.timeout(10):
            assert (await reader.messages.get())["status"] == 503


async def test_a_link_is_found_by_the_others_as_long_as_it_can_be_read(ledger, other, monkeypatch):
    """A link that is revoked or has expired is not, and that of a session that has ended is for a while."""
    monkeypatch.setattr(sharing, "_KEPT_AFTER_END_S", 0.01)
    ledger.found(1, "/here")
    links = sharing.Sharing()
    part = sharing.SharedPart(Session(), "me", links, ledger)
    kept, revoked = (links.share("live_1", "me", 60).token for _ in range(2))
    assert {other.keeper(digest(token)) for token in (kept, revoked)} == {(1, "/here")}
    links.revoke("live_1", "me", revoked)
    expired = links.share("live_1", "me", 0.01).token
    await asyncio.sleep(0.02)
    assert [other.keeper(digest(token))[0] for token in (revoked, expired)] == [0, 0]
    part.close()
    assert other.keeper(digest(kept)) == (1, "/here")
    await asyncio.sleep(0.02)
    assert other.keeper(digest(kept)) == (0, "")
