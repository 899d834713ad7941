"""The head of a response alone, also of one that has no end."""

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

from asr_server.net.install import HeadRequests


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

    app = HeadRequests(Starlette(routes=[Route("/", lambda _: StreamingResponse(ticks(), media_type="text/plain"))]))
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

    scope = {"type": "http", "method": "HEAD", "path": "/", "headers": []}
    await asyncio.wait_for(HeadRequests(thinking)(scope, asyncio.Event().wait, send), 5)
    assert not left.is_set()
    assert sent == ["http.response.start", "http.response.body"]
