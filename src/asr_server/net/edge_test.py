"""The middleware that all requests and handshakes pass, around small apps; E2Etest/contract has what clients see."""

import asyncio
from types import SimpleNamespace

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.routing import Route, WebSocketRoute

from asr_server import app as server
from asr_server import feature_list
from asr_server.core.errors import Overloaded
from asr_server.core.settings import Settings
from asr_server.net.access import PROBES, AccessRules
from asr_server.net.edge import Edge
from asr_server.net.loop_time import loop_time
from asr_server.net.request_log import RequestMetrics

FIRST, SECOND = "sk-first", "sk-second"
KEYS = f"{FIRST},{SECOND}"
HOST = [(b"host", b"127.0.0.1")]


def _rules(**settings):
    return AccessRules.of(Settings(_env_file=None, **settings))


RULES = _rules()


def _app(*routes, rules=RULES):
    app = Starlette(routes=routes)
    app.add_middleware(Edge, rules=rules)
    return app


async def _get(app, path, *, address="127.0.0.1"):
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=(address, 5))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return await client.get(path)


def _handshake(path, *, address="me", headers=()):
    scope = {"type": "websocket", "path": path, "query_string": b"", "client": (address, 5), "subprotocols": []}
    return {**scope, "headers": [*HOST, *headers], "extensions": {"websocket.http.response": {}}, "state": {}}


def _request(path, *, method="GET"):
    app = SimpleNamespace(state=SimpleNamespace())
    return {"type": "http", "method": method, "path": path, "headers": HOST, "client": ("me", 1), "app": app}


async def _ignore(message): ...


async def _answer(send, status, *pieces):
    await send({"type": "http.response.start", "status": status, "headers": []})
    for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def test_without_keys_the_address_counts():
    """An IPv6 subscriber has a whole network of addresses; it is one caller."""
    app, others = _app(rules=_rules(key_rate=1)), ["10.0.0.1", "10.0.0.2", "2001:db8::1", "2001:db8:0:1::1"]
    for address in (*others, "::ffff:10.0.0.1", "::ffff:10.0.0.2"):
        assert (await _get(app, "/nowhere", address=address)).status_code == 404
    assert (await _get(app, "/nowhere", address="2001:db8::2")).status_code == 429


async def test_ephemeral_keys_share_the_quota_of_the_key_that_they_were_issued_for():
    """All of one key together, from whatever address; another key has its own."""
    rules, shares = _rules(api_keys=KEYS, key_rate=2), []

    async def note(socket):
        shares.append(socket.state.caller.share)
        await socket.close()

    app = _app(WebSocketRoute("/v1/realtime", note), rules=rules)
    owners = [rules.api_keys.owner(key) for key in (FIRST, SECOND)]
    for number, owner in enumerate((owners[0], owners[0], owners[0], owners[1])):
        value = rules.ephemeral_keys.issue({}, 60, owner).value
        headers = [(b"authorization", f"Bearer {value}".encode())]
        received = asyncio.Queue()
        received.put_nowait({"type": "websocket.connect"})
        await app(_handshake("/v1/realtime", address=f"10.0.0.{number}", headers=headers), received.get, _ignore)
    assert shares == [owners[0], owners[0], owners[1]]


async def test_a_place_is_taken_until_the_answer_is_written():
    """And no longer: not until the server has tidied up behind it."""
    free, rules = [], _rules(key_max_requests=1)

    async def note(message):
        try:
            with rules.quota.taken("me"):
                free.append(True)
        except Overloaded:
            free.append(False)

    async def app(scope, receive, send):
        await _answer(send, 200, b"a")
        await note("after the answer")

    await Edge(app, rules)(_request("/v1/models"), None, note)
    assert free == [False, False, False, True]


async def test_a_fault_of_ours_has_id_and_headers_and_gives_its_place_back():
    """The metrics count an unexpected error too."""
    registry = CollectorRegistry()
    app = _app(Route("/broken", lambda _: 1 / 0), rules=_rules(key_max_requests=1))
    app.state.services = SimpleNamespace(request_metrics=RequestMetrics(registry))
    for _ in range(2):
        answer = await _get(app, "/broken")
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
        assert {"x-request-id", "x-content-type-options"} <= set(answer.headers)
    assert registry.get_sample_value("asr_errors_total", {"surface": "http", "code": "internal_error"}) == 2


@pytest.mark.parametrize("keys", [KEYS, ""])
def test_the_schema_has_the_doors_answers(keys):
    """Every operation except the probes: 401, 403 and 429; keys are declared if there are some."""
    app = server.create_app(Settings(_env_file=None, model_id="demo", api_keys=keys))
    for path, operations in app.openapi()["paths"].items():
        for operation in operations.values():
            assert ({"401", "403", "429"} <= set(operation["responses"])) is (path not in PROBES)
            is_open = path in PROBES or path.startswith(feature_list.open_paths())
            assert ("security" in operation) is (keys != "" and not is_open)


async def test_a_route_that_thinks_before_its_head_is_not_told_that_the_reader_left():
    """The app would give up its work, and there would be no head."""
    left, sent, asked = [], asyncio.Queue(), _request("/", method="HEAD")

    async def thinking(scope, receive, send):
        waiting = asyncio.create_task(receive())
        await asyncio.sleep(0.02)
        left.append(waiting.done())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        assert (await waiting)["type"] == "http.disconnect"
        scope["route"] = "its own"

    await asyncio.wait_for(Edge(thinking, RULES)(asked, asyncio.Event().wait, sent.put), 5)
    assert (left, asked["route"]) == ([False], "its own")  # which is logged
    assert [sent.get_nowait()["type"] for _ in range(sent.qsize())] == ["http.response.start", "http.response.body"]


@pytest.mark.parametrize(
    ("scope", "status", "handshakes_s", "waits"),
    [
        (_request("/v1/x"), 200, 0, True),
        (_request("/livez"), 200, 0, False),
        (_request("/v1/x", method="POST"), 400, 0, True),
        (_request("/v1/x", method="POST"), 200, 0, False),  # it waits in the queue of the engine
        (_request("/v1/x", method="POST"), 503, 0, False),  # a fault of the server's is nobody's debt
        (_handshake("/ws/transcribe"), None, 0, False),  # whatever the open sockets take of the loop
        (_handshake("/ws/transcribe"), None, 10, True),
    ],
)
async def test_a_caller_that_takes_too_much_of_the_loop_is_answered_later(scope, status, handshakes_s, waits):
    """Short answers and sockets wait while others have work."""

    async def app(scope, receive, send):
        if status is not None:
            await _answer(send, status)

    times = loop_time()
    with times.working(times.of("other")):
        times.of("me").take(10.0)
        times.of("me").handshakes.take(handshakes_s)
        answer = asyncio.create_task(Edge(app, RULES)(scope, asyncio.Event().wait, _ignore))
        await asyncio.sleep(0.05)
        assert answer.done() is not waits
    answer.cancel()


async def test_a_client_that_does_not_wait_for_its_turn_leaves_it_to_the_next(monkeypatch):
    """Fifty clients have gone before their turns; the one after them has the first turn.

    To stop waiting for its next message could lose it: nothing that is being received is cancelled.
    """
    monkeypatch.setattr("asr_server.net.loop_time.HANDSHAKE_S", 0.03)  # a turn in 0.6 s
    opened, cancelled = asyncio.Queue(), []

    async def app(scope, receive, send):
        while True:
            opened.put_nowait((await receive())["type"])

    def connect(*types):
        messages = asyncio.Queue()
        for one in types:
            messages.put_nowait({"type": one})

        async def receive():
            try:
                return await messages.get()
            except asyncio.CancelledError:
                cancelled.append(messages)
                raise

        return messages, asyncio.create_task(Edge(app, RULES)(_handshake("/ws/transcribe"), receive, _ignore))

    times = loop_time()
    with times.working(times.of("other")):
        times.of("me").handshakes.take(0.31)
        left = [connect("websocket.connect", "websocket.disconnect")[1] for _ in range(50)]
        messages, stays = connect("websocket.connect")
        async with asyncio.timeout(15):  # their turns would take half a minute
            await asyncio.gather(*left)
            assert await opened.get() == "websocket.connect"
            messages.put_nowait({"type": "websocket.disconnect"})
            assert await opened.get() == "websocket.disconnect"
        assert (opened.empty(), cancelled) == (True, [])
    stays.cancel()
