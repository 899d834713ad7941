"""The middleware that all requests and handshakes pass, around the real app and around small ones."""

import asyncio
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route, WebSocketRoute

from asr_server import app as server
from asr_server import feature_list, web
from asr_server.core.errors import Overloaded
from asr_server.core.settings import Settings
from asr_server.net.access import PROBES, AccessRules
from asr_server.net.edge import Edge
from asr_server.net.loop_time import loop_time

FIRST, SECOND = "sk-first", "sk-second"
KEYS = f"{FIRST},{SECOND}"
# All of its routes are tried, so that a new one cannot be forgotten.
KEYED = server.create_app(Settings(_env_file=None, model_id="demo", api_keys=KEYS))
HOST = [(b"host", b"127.0.0.1")]


def _rules(**settings):
    return AccessRules.of(Settings(_env_file=None, model_id="demo", **settings))


RULES = _rules()


def _app(*routes, rules=None, **settings):
    """An app with these routes, and two keys unless the settings say otherwise."""
    app = Starlette(routes=routes)
    app.add_middleware(Edge, rules=rules or _rules(**{"api_keys": KEYS, **settings}))
    return app


async def _ask(app, method, path, *, address="127.0.0.1", **headers):
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=(address, 5))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return await client.request(method, path, headers=headers)


async def _statuses(app, path, times, **headers):
    return [(await _ask(app, "GET", path, **headers)).status_code for _ in range(times)]


def _handshake(path, *, address="me", headers=()):
    scope = {"type": "websocket", "path": path, "query_string": b"", "client": (address, 5), "subprotocols": []}
    return {**scope, "headers": [*HOST, *headers], "extensions": {"websocket.http.response": {}}, "state": {}}


def _request(path, *, method="GET", **more):
    return {"type": "http", "method": method, "path": path, "headers": HOST, "client": ("me", 1), **more}


async def _ignore(message): ...


async def _socket(app, path, key="", address="me"):
    """Connect a socket, and return the first message of the app."""
    sent, received = [], asyncio.Queue()
    received.put_nowait({"type": "websocket.connect"})

    async def send(message):
        sent.append(message)
        received.put_nowait({"type": "websocket.disconnect", "code": 1000})

    headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
    await asyncio.wait_for(app(_handshake(path, address=address, headers=headers), received.get, send), 20)
    return sent[0]


# -- who comes in ------------------------------------------------------------------------------------------------------


async def test_the_page_needs_no_key():
    """All of its files, and none that it has not. Modules are parts of the scripts that import them, and no files."""
    for part in ("", f"{web.version()}/"):
        statuses = {name: (await _ask(KEYED, "GET", f"/web/{part}{name}")).status_code for name in web.names()}
        assert set(statuses.values()) <= {200, 404}
        assert {Path(name).suffix for name, status in statuses.items() if status == 404} == {".js"}
        assert statuses["app.js"] == 200
    for path in ("/web/", "/web/x.js", "/web/../health", "/web/app.js/x", f"/web/{web.version()}/x.js"):
        assert (await _ask(KEYED, "GET", path)).status_code == 401


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "QUERY"])
@pytest.mark.parametrize(
    ("allowed", "origin", "status"),
    [
        ("", "http://evil.example", 403),
        ("http://evil.example", "http://evil.example", 404),
        ("*", "http://evil.example", 404),
        ("", "http://127.0.0.1", 404),
    ],
)
async def test_a_foreign_page_cannot_make_a_browser_spend_work(method, allowed, origin, status):
    """A multipart form needs no preflight: it is refused by its origin, unless that is allowed."""
    answer = await _ask(_app(api_keys="", allowed_origins=allowed), method, "/nowhere", origin=origin)
    assert answer.status_code == status
    assert status == 404 or answer.json()["error"]["code"] == "origin_not_allowed"


async def test_an_allowed_page_may_read_answers_and_their_headers():
    """Preflight with any header, the answer's origin, the request id exposed; also of a refusal."""
    app = _app(allowed_origins="https://app.example.com")
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,x-stainless-os"}
    preflight = await _ask(app, "OPTIONS", "/v1/jobs", origin="https://app.example.com", **asked)
    assert preflight.status_code == 200
    assert "x-stainless-os" in preflight.headers["access-control-allow-headers"]
    refused = await _ask(app, "POST", "/v1/jobs", origin="https://app.example.com")
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://app.example.com"
    exposed = refused.headers["access-control-expose-headers"].split(", ")
    # Without `x-should-retry` OpenAI's client in a page sends a recording again that met the time limit.
    assert {"x-request-id", "retry-after", "x-should-retry", "x-untranslated"} <= set(exposed)
    other = await _ask(app, "OPTIONS", "/v1/jobs", origin="https://evil.example", **asked)
    assert "access-control-allow-origin" not in other.headers


async def test_a_caller_over_its_share_is_told_when_to_come_back():
    """429 with Retry-After, per key; sockets alike, and the other key is not touched."""
    app = _app(key_rate=2)
    first, second = {"authorization": f"Bearer {FIRST}"}, {"authorization": f"Bearer {SECOND}"}
    assert await _statuses(app, "/nowhere", 3, **first) == [404, 404, 429]
    refused = await _ask(app, "GET", "/nowhere", **first)
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert (await _socket(app, "/ws/transcribe", FIRST))["status"] == 429
    assert await _statuses(app, "/nowhere", 1, **second) == [404]
    assert await _statuses(app, "/nowhere", 1) == [401]


@pytest.mark.parametrize(
    ("addresses", "shared"),
    [
        (["10.0.0.1", "10.0.0.2"], False),
        (["2001:db8::1", "2001:db8::2"], True),
        (["2001:db8::1", "2001:db8:0:1::1"], False),
        (["::ffff:10.0.0.1", "::ffff:10.0.0.2"], False),
    ],
)
async def test_without_keys_the_address_counts(addresses, shared):
    """An IPv6 subscriber has a whole network of addresses; it is one caller."""
    app = _app(api_keys="", key_rate=1)
    found = [(await _ask(app, "GET", "/nowhere", address=address)).status_code for address in addresses]
    assert found == [404, 429 if shared else 404]


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
        await _socket(app, "/v1/realtime", value, f"10.0.0.{number}")
    assert shares == [owners[0], owners[0], owners[1]]


async def test_who_looks_at_the_state_may_still_ask():
    """The page does so every few seconds; it needs a key, and takes nothing from what its user may ask for."""
    app, key = _app(key_rate=1), {"api-key": FIRST}
    assert await _statuses(app, "/health", 1) == [401]
    assert await _statuses(app, "/health", 3, **key) == [404] * 3
    assert await _statuses(app, "/nowhere", 2, **key) == [404, 429]


async def test_a_place_is_taken_until_the_answer_is_written():
    """And no longer: not until the server has tidied up behind it."""
    free, rules = {}, _rules(key_max_requests=1)

    def note(when):
        try:
            with rules.quota.taken("me"):
                free[when] = True
        except Overloaded:
            free[when] = False

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await send({"type": "http.response.body", "body": b"b"})
        note("after the answer")

    async def write(message):
        note(message.get("body", b"head"))

    await Edge(app, rules)(_request("/v1/models", app=KEYED), None, write)
    assert free == {b"head": False, b"a": False, b"b": False, "after the answer": True}


# -- what every answer has ---------------------------------------------------------------------------------------------


async def test_a_fault_of_ours_has_id_and_headers_and_gives_its_place_back():
    """An unexpected error has the headers of the access check too."""
    app = _app(Route("/broken", lambda _: 1 / 0), key_max_requests=1)
    for _ in range(3):
        answer = await _ask(app, "GET", "/broken", **{"api-key": FIRST})
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
        assert {"x-request-id", "x-content-type-options"} <= set(answer.headers)


@pytest.mark.parametrize("path", ["/livez", "/", "/nowhere", "/docs", "/v1/models"])
async def test_every_answer_tells_browsers_what_they_may_do(path):
    """Refusals of requests and redirects included. Styles within the page are for that of the API alone, scripts for
    none."""
    answer = await _ask(KEYED, "GET", path)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    policy = answer.headers["content-security-policy"]
    assert policy.partition(";")[0] == f"default-src '{'none' if path == '/' else 'self'}'"
    assert "frame-ancestors 'none'" in policy
    inline = [part.split()[0] for part in policy.split(";") if "unsafe-inline" in part]
    assert inline == (["style-src"] if path == "/docs" else [])


async def test_a_refused_socket_tells_browsers_what_they_may_do():
    """Its refusal is an HTTP response like any other: it has the same headers."""
    start = await _socket(KEYED, "/ws/transcribe")
    assert start["type"] == "websocket.http.response.start"
    told = {name.decode().lower() for name, _ in start["headers"]}
    wanted = {"x-content-type-options", "referrer-policy", "cross-origin-resource-policy", "content-security-policy"}
    assert wanted <= told


def test_the_schema_has_the_doors_answers():
    """Every operation but the probes: 401, 403 and 429; keys are declared where there are some."""
    keyless = server.create_app(Settings(_env_file=None, model_id="demo"))
    for app, keyed in ((KEYED, True), (keyless, False)):
        for path, operations in app.openapi()["paths"].items():
            for operation in operations.values():
                guarded = path not in PROBES
                assert ({"401", "403", "429"} <= set(operation["responses"])) is guarded
                needs_key = guarded and not path.startswith(feature_list.open_paths())
                assert ("security" in operation) is (needs_key and keyed)


# -- HEAD --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2.3", "2.4"])
async def test_a_stream_without_an_end_is_left_after_its_head(version):
    """The route's generator is closed, and the caller gets the status, the headers and no byte."""
    closed, sent = asyncio.Event(), []

    async def ticks():
        try:
            while True:
                yield "tick"
                await asyncio.sleep(0.001)
        finally:
            closed.set()

    async def send(message):
        sent.append(message)

    app = _app(Route("/", lambda _: StreamingResponse(ticks(), media_type="text/plain")), api_keys="")
    # Starlette notices by the version of ASGI who has left.
    scope = _request("/", method="HEAD", query_string=b"", asgi={"version": "3.0", "spec_version": version})
    await asyncio.wait_for(app(scope, asyncio.Event().wait, send), 5)
    start, body = sent
    assert (start["status"], (b"content-type", b"text/plain; charset=utf-8") in start["headers"]) == (200, True)
    assert body == {"type": "http.response.body", "body": b""}
    assert closed.is_set()
    assert scope["method"] == "HEAD"


async def test_a_route_that_thinks_before_its_head_is_not_told_that_the_reader_left():
    """The app would give up its work, and there would be no head."""
    left, sent = asyncio.Event(), []

    async def thinking(scope, receive, send):
        waiting = asyncio.create_task(receive())
        await asyncio.sleep(0.02)
        if waiting.done():
            left.set()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        assert (await waiting)["type"] == "http.disconnect"

    async def send(message):
        sent.append(message["type"])

    scope = _request("/", method="HEAD", app=KEYED)
    await asyncio.wait_for(Edge(thinking, RULES)(scope, asyncio.Event().wait, send), 5)
    assert not left.is_set()
    assert sent == ["http.response.start", "http.response.body"]


# -- the time of the loop by caller ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status", "waits"),
    [
        ("GET", "/v1/x", 200, True),
        ("GET", "/health", 200, True),
        ("GET", "/livez", 200, False),
        ("POST", "/v1/x", 400, True),
        ("POST", "/v1/x", 200, False),
        ("POST", "/v1/x", 503, False),
    ],
)
async def test_a_caller_that_takes_too_much_of_the_loop_gets_short_answers_later(method, path, status, waits):
    """Probes do not wait, a request with work for the engine only in its queue, and a fault of the server's is nobody's
    debt."""

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    times = loop_time()
    with times.working(times.of("other")):
        times.of("me").take(1.0)
        scope = _request(path, method=method, app=KEYED)
        answer = asyncio.create_task(Edge(app, RULES)(scope, asyncio.Event().wait, _ignore))
        await asyncio.sleep(0.05)
        assert answer.done() is not waits
    answer.cancel()


@pytest.mark.parametrize(("taken_s", "waits"), [(0.0, False), (10.0, True)])
async def test_a_caller_that_opens_sockets_without_end_waits_for_the_next(taken_s, waits):
    """The next one waits while others have work, whatever the open ones take of the loop."""
    opened = asyncio.Event()

    async def app(scope, receive, send):
        opened.set()

    times = loop_time()
    with times.working(times.of("other")):
        times.of("me").take(10.0)
        times.of("me").handshakes.take(taken_s)
        scope = _handshake("/ws/transcribe")
        connection = asyncio.create_task(Edge(app, RULES)(scope, asyncio.Event().wait, _ignore))
        await asyncio.sleep(0.05)
        assert opened.is_set() is not waits
    connection.cancel()


async def test_a_client_that_does_not_wait_for_its_turn_leaves_it_to_the_next():
    """Fifty clients have gone before their turns, which are ten a second; one behind them has the first turn.

    To stop waiting for its next message could lose it: nothing that is being received is cancelled.
    """
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
        async with asyncio.timeout(2):
            await asyncio.gather(*left)
            assert await opened.get() == "websocket.connect"
            messages.put_nowait({"type": "websocket.disconnect"})
            assert await opened.get() == "websocket.disconnect"
        assert (opened.empty(), cancelled) == (True, [])
    stays.cancel()
