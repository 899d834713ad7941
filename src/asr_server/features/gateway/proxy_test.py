"""Requests through the gateway: what passes unchanged, and what becomes of them when their worker dies."""

import json

import pytest

from asr_server.features.gateway import proxy
from asr_server.features.gateway.conftest import KEYS, answer

PATH = "/v1/audio/transcriptions"
EVENTS = (b"content-type", b"text/event-stream")


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (200, {"server-timing": "total;dur=1.5", "content-disposition": "attachment"}),
        (429, {"retry-after": "37"}),
        (503, {"retry-after": "5"}),
        (504, {"x-should-retry": "false"}),
    ],
)
def test_an_answer_passes_with_its_status_headers_and_body(workers, client, status, headers):
    """Clients of the gateway back off for as long as the worker says, and do not repeat what is no use."""

    async def respond(process, request, send):
        await answer(send, status, b"\x00body", [(name.encode(), value.encode()) for name, value in headers.items()])

    workers.on_request = respond
    got = client.post(PATH, content=b"audio")
    assert (got.status_code, got.content) == (status, b"\x00body")
    assert headers.items() <= dict(got.headers).items()


@pytest.mark.parametrize(
    "key",
    [{"api-key": KEYS[1]}, {"authorization": f"Bearer {KEYS[1]}"}, {"authorization": "Basic x", "api-key": KEYS[0]}],
)
def test_a_request_reaches_the_worker_as_it_came(workers, gateway_with, key):
    """Its path, query, body, keys and other headers; its id is the one that the gateway logs and returns."""

    async def respond(process, request, send):
        await answer(send, 200)

    workers.on_request = respond
    headers = {**key, "x-stainless-lang": "python", "content-type": "x/y", "connection": "close, te", "te": "trailers"}
    got = gateway_with(api_keys=",".join(KEYS)).post(f"{PATH}?a=1&b=%20", content=b"audio", headers=headers)
    (request,) = workers.requests
    assert (request.path, request.query, request.body) == (PATH, "a=1&b=%20", b"audio")
    assert {**key, "x-stainless-lang": "python", "content-type": "x/y"}.items() <= request.headers.items()
    assert "te" not in request.headers
    assert request.headers["x-request-id"] == got.headers["x-request-id"]


def test_a_request_without_an_answer_is_sent_once_more(workers, client):
    """The worker dies over it; the next one gets all of it again, and its answer is the client's."""

    async def respond(process, request, send):
        if len(workers.requests) == 1:
            process.kill()
        else:
            await answer(send, 200, b"words")

    workers.on_request = respond
    got = client.post(PATH, content=b"audio" * 100_000)
    assert (got.status_code, got.content) == (200, b"words")
    assert [request.body for request in workers.requests] == [b"audio" * 100_000] * 2
    assert len(workers.processes) == 2


def test_a_request_over_which_two_workers_die_is_told_to_come_back(workers, client):
    """It may be the request itself that ends them."""

    async def respond(process, request, send):
        process.kill()

    workers.on_request = respond
    got = client.post(PATH, content=b"audio")
    assert (got.status_code, got.json()["error"]["code"]) == (503, "worker_lost")
    assert got.headers["retry-after"] == "1"
    assert len(workers.requests) == 2


def test_an_answer_that_had_begun_is_not_asked_for_again(workers, client):
    """A large one goes out as it comes: after its first bytes a second answer would be appended to the first."""
    begun = b"x" * 100_000

    async def respond(process, request, send):
        await answer(send, 200, begun, length=proxy._WHOLE_BYTES + 1)
        process.kill()

    workers.on_request = respond
    cut = client.post(PATH, content=b"audio")  # `net/http_protocol.py` then cuts the connection
    assert len(cut.content) < int(cut.headers["content-length"])
    assert len(workers.requests) == 1


def test_an_event_stream_that_is_cut_ends_with_an_error_event(workers, client):
    """Whole events pass, the half one does not, and the request is not sent again: the client has read its words."""

    async def respond(process, request, send):
        await send({"type": "http.response.start", "status": 200, "headers": [EVENTS]})
        await send({"type": "http.response.body", "body": b'data: {"delta":"one"}\n\ndata: {"del', "more_body": True})
        process.kill()

    workers.on_request = respond
    first, last = client.post(PATH, content=b"audio").text.removesuffix("\n\n").split("\n\n")
    assert first == 'data: {"delta":"one"}'
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "worker_lost"
    assert len(workers.requests) == 1


def test_a_body_over_the_cap_never_reaches_a_worker(workers, gateway_with):
    """By its declared length; no worker is started for it."""
    got = gateway_with(max_upload_mb=1).post(PATH, content=bytes(1024 * 1024 + 1))
    assert (got.status_code, got.json()["error"]["code"]) == (413, "file_too_large")
    assert not workers.processes
