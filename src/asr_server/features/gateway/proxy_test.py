"""Requests through the gateway: what passes unchanged, and what becomes of them when their worker dies."""

import asyncio
import json
import tempfile

import pytest

from asr_server.core.errors import Cancelled, FileTooLarge, UploadStalled, UploadsUnavailable
from asr_server.features.gateway import proxy
from asr_server.features.gateway.conftest import KEYS, answer
from asr_server.features.gateway.proxy import Upload

PATH = "/v1/audio/transcriptions"
MIB = 1024 * 1024
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


def _receive(*parts, then="wait"):
    """Return a `receive` that gives the parts, then nothing more or the end of the connection."""
    messages = [{"type": "http.request", "body": p, "more_body": i + 1 < len(parts)} for i, p in enumerate(parts)]

    async def receive():
        if messages:
            return messages.pop(0)
        if then == "wait":
            await asyncio.get_running_loop().create_future()
        return {"type": "http.disconnect"}

    return receive


@pytest.fixture
def make():
    """Makes uploads, and closes them."""
    made = []

    def upload(receive, max_bytes=10 * MIB):
        made.append(Upload(receive, max_bytes))
        return made[-1]

    yield upload
    for one in made:
        one.close()


async def _read(upload):
    return b"".join([piece async for piece in upload])


async def test_every_reading_gives_the_whole_body(make):
    """The first as it comes, the next from what was kept, also after one that was broken off."""
    parts = [bytes([n]) * MIB for n in range(3)]
    upload = make(_receive(*parts))
    async for piece in upload:
        assert piece == parts[0]
        break
    assert await _read(upload) == b"".join(parts)
    assert await _read(upload) == b"".join(parts)


async def test_it_passes_each_piece_on_before_the_next_has_come(make):
    """Nothing waits for the end of the body."""
    gate = asyncio.Event()
    messages = iter([{"type": "http.request", "body": b"a", "more_body": True}])

    async def receive():
        if (message := next(messages, None)) is not None:
            return message
        await gate.wait()
        return {"type": "http.request", "body": b"b", "more_body": False}

    pieces = aiter(make(receive))
    assert await anext(pieces) == b"a"
    gate.set()
    assert await anext(pieces) == b"b"


async def test_over_the_cap_it_stops_at_the_piece_that_is_too_much(make):
    """The rest is not read."""
    upload = make(_receive(bytes(600), bytes(600), bytes(600)), 1_000)
    with pytest.raises(FileTooLarge):
        await _read(upload)
    assert upload._body.size == 1_200


async def test_a_client_that_leaves_is_noticed_in_the_body_and_after_it(make):
    """`Cancelled` in the middle; `gone` returns behind the end."""
    with pytest.raises(Cancelled):
        await _read(make(_receive(then="end")))
    upload = make(_receive(b"a", then="end"))
    await _read(upload)
    async with asyncio.timeout(1):
        await upload.gone()


async def test_a_client_that_stops_in_the_middle_is_not_waited_for(make, monkeypatch):
    """The worker's own limit is behind this one: it waits for the whole body."""
    monkeypatch.setattr("asr_server.net.body._STALLED_S", 0.05)
    pieces = [{"type": "http.request", "body": b"a", "more_body": True}]

    async def receive():
        return pieces.pop(0) if pieces else await asyncio.Event().wait()

    with pytest.raises(UploadStalled):
        await _read(make(receive))


async def test_a_full_disk_is_reported_as_that(make, monkeypatch):
    """The worker says the same: a later try may succeed."""
    upload = make(_receive(b"a" * MIB, b"b"))

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(upload._file, "write", full, raising=False)
    with pytest.raises(UploadsUnavailable, match="No space left"):
        await _read(upload)


async def test_a_directory_for_temporary_files_that_vanishes_meanwhile_is_made_again(tmp_path, monkeypatch):
    """The directory vanishes after the first part, before so much is there that a file is written."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    parts = [bytes(1024), bytes(2 * 1024 * 1024)]

    async def receive():
        body = parts.pop(0)
        if parts:
            (tmp_path / "temporary").mkdir()
        else:
            (tmp_path / "temporary").rmdir()
        return {"type": "http.request", "body": body, "more_body": bool(parts)}

    upload = Upload(receive, 4 * 1024 * 1024)
    assert sum([len(piece) async for piece in upload]) == 2 * 1024 * 1024 + 1024
    upload.close()
