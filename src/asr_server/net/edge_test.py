"""The edge of a server: `HEAD`, also of a stream without an end, and the time of the loop by caller."""

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

from asr_server.core.settings import Settings
from asr_server.net.access import AccessRules
from asr_server.net.edge import Edge
from asr_server.net.loop_time import loop_time

RULES = AccessRules.of(Settings(_env_file=None))


@pytest.mark.parametrize("version", ["2.3", "2.4"])
async def test_a_stream_without_an_end_is_left_after_its_head(version):
    """The route's generator is closed, and the caller gets the status, the headers and no byte."""
    closed = asyncio.Event()

    async def ticks():
        try:
            while True:
                yield "tick"
                await asyncio.sleep(0.001)
        finally:
            closed.set()

    app = Starlette(routes=[Route("/", lambda _: StreamingResponse(ticks(), media_type="text/plain"))])
    app.add_middleware(Edge, rules=RULES)
    sent = []
    scope = {"type": "http", "method": "HEAD", "path": "/", "headers": [], "query_string": b""}
    scope["asgi"] = {"version": "3.0", "spec_version": version}  # Starlette notices by it who has left

    async def send(message):
        sent.append(message)

    await asyncio.wait_for(app(scope, asyncio.Event().wait, send), 5)
    start, body = sent
    assert (start["status"], (b"content-type", b"text/plain; charset=utf-8") in start["headers"]) == (200, True)
    assert body == {"type": "http.response.body", "body": b""}
    assert closed.is_set()
    assert scope["method"] == "HEAD"


async def test_a_route_that_thinks_before_its_head_is_not_told_that_the_reader_left():
    """The app would give up its work, and there would be no head."""
    left = asyncio.Event()

    async def thinking(scope, receive, send):
        waiting = asyncio.create_task(receive())
        await asyncio.sleep(0.02)
        if waiting.done():
            left.set()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        assert (await waiting)["type"] == "http.disconnect"

    sent = []

    async def send(message):
        sent.append(message["type"])

    scope = {"type": "http", "method": "HEAD", "path": "/", "headers": [], "app": Starlette()}
    await asyncio.wait_for(Edge(thinking, RULES)(scope, asyncio.Event().wait, send), 5)
    assert not left.is_set()
    assert sent == ["http.response.start", "http.response.body"]


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

    async def ignore(message):
        pass

    times = loop_time()
    headers = [(b"host", b"127.0.0.1")]
    scope = {"type": "http", "method": method, "path": path, "headers": headers, "client": ("me", 1)}
    with times.working(times.of("other")):
        times.of("me").take(1.0)
        answer = asyncio.create_task(Edge(app, RULES)(scope, asyncio.Event().wait, ignore))
        await asyncio.sleep(0.05)
        assert answer.done() is not waits
    answer.cancel()


@pytest.mark.parametrize(("taken_s", "waits"), [(0.0, False), (10.0, True)])
async def test_a_caller_that_opens_sockets_without_end_waits_for_the_next(taken_s, waits):
    """The next one waits while others have work, whatever the open ones take of the loop."""
    opened = asyncio.Event()

    async def app(scope, receive, send):
        opened.set()

    async def ignore(message):
        pass

    times = loop_time()
    scope = {"type": "websocket", "path": "/ws/transcribe", "headers": [(b"host", b"127.0.0.1")], "client": ("me", 1)}
    with times.working(times.of("other")):
        times.of("me").take(10.0)
        times.of("me").handshakes.take(taken_s)
        connection = asyncio.create_task(Edge(app, RULES)({**scope, "query_string": b""}, asyncio.Event().wait, ignore))
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

    async def ignore(message):
        pass

    def connect(messages):
        async def receive():
            try:
                return await messages.get()
            except asyncio.CancelledError:
                cancelled.append(messages)
                raise

        scope = {"type": "websocket", "path": "/ws/transcribe", "headers": [(b"host", b"127.0.0.1")]}
        return asyncio.create_task(
            Edge(app, RULES)({**scope, "client": ("me", 1), "query_string": b""}, receive, ignore)
        )

    def messages_of(*types):
        found = asyncio.Queue()
        for one in types:
            found.put_nowait({"type": one})
        return found

    times = loop_time()
    with times.working(times.of("other")):
        times.of("me").handshakes.take(0.31)
        left = [connect(messages_of("websocket.connect", "websocket.disconnect")) for _ in range(50)]
        messages = messages_of("websocket.connect")
        stays = connect(messages)
        async with asyncio.timeout(2):
            await asyncio.gather(*left)
            assert await opened.get() == "websocket.connect"
            messages.put_nowait({"type": "websocket.disconnect"})
            assert await opened.get() == "websocket.disconnect"
        assert (opened.empty(), cancelled) == (True, [])
    stays.cancel()
