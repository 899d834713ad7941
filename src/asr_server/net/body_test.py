"""Form fields in the spellings that clients use."""

import asyncio
import json
import tempfile
from types import SimpleNamespace

import pytest
from starlette.datastructures import FormData, Headers
from starlette.requests import Request

from asr_server.core.conftest import raises
from asr_server.net import body
from asr_server.net.body import FormParser

FORM = b"multipart/form-data; boundary=b"
DEEP, NEST = "[" * 100_000, '{"a":' * 100_000  # nested too deep for a reader of JSON


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        *(
            (items, ["a", "b"])
            for items in (
                [("k[]", "a"), ("k[]", "b")],
                [("k", "a"), ("k", "b")],
                [("k", "a,b")],
                [("k", '["a", "b"]')],
                [("k[0]", "a"), ("k[1]", "b")],
                [("k", " a , b "), ("k", "")],
            )
        ),
        ([("kk", "x"), ("k[x]", "y"), ("k", "")], []),  # these are other fields
        ([("k", "[oops")], ["[oops"]),  # a broken array is words
        ([("k", DEEP)], [DEEP]),
    ],
    ids=range(9),
)
def test_a_list_is_a_list_in_every_spelling(items, expected):
    """Repeated, bracketed, indexed, comma-joined and JSON lists mean the same."""
    assert body.listed(FormData(items), "k") == expected


@pytest.mark.parametrize(
    ("name", "limit", "said"), [("known_speaker_references[]", 8 * 2**20, "8 MiB"), ("prompt", 256 * 1024, "256 KiB")]
)
async def test_text_is_bounded_by_its_kind(name, limit, said):
    """Recordings of speakers, as text, have a bound of their own. What is not over the bound is read."""

    async def parsed(size):
        async def stream():
            yield f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode() + b"a" * size
            yield b"\r\n--b--\r\n"

        headers = Headers({"content-type": "multipart/form-data; boundary=b"})
        return await FormParser(headers, stream()).parse()

    assert len((await parsed(limit))[name]) == limit
    with raises("malformed_body", match=said):
        await parsed(limit + 1)


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([("k[type]", "server_vad"), ("k[threshold]", "0.4")], {"type": "server_vad", "threshold": "0.4"}),
        ([("k", '{"type": "server_vad", "threshold": 0.4}')], {"type": "server_vad", "threshold": 0.4}),
        ([("k", '"auto"')], "auto"),
        ([("k", "auto")], "auto"),
        ([("k", "{oops")], "{oops"),
        ([("k", " ")], None),
        ([("kk[type]", "x")], None),
        ([("k", NEST)], NEST),
    ],
    ids=range(8),
)
def test_an_object_is_an_object_in_every_spelling(items, expected):
    """Bracketed parts, JSON text and a bare word; what is absent is None, and what is broken stays text."""
    assert body.nested(FormData(items), "k") == expected


async def test_a_declared_length_over_the_cap_is_refused_before_anything_is_read():
    """Otherwise a client would send hundreds of megabytes that nobody wants."""
    headers = [(b"content-type", FORM), (b"content-length", b"1001")]
    with raises("file_too_large"):
        await body.read_form(Request({"type": "http", "headers": headers}, _never), 1000)


def _sent(data):
    async def receive():
        return {"type": "http.request", "body": data, "more_body": False}

    return Request({"type": "http", "headers": [(b"content-type", FORM)], "query_string": b""}, receive)


async def _never():
    raise AssertionError("the body was read")


@pytest.mark.parametrize(
    "data", [b'{"a":[' + b"0," * 20_001 + b"0]}", b'{"a":[' + b'"",' * 10_001 + b'""]}', b"[" * 20_002]
)
async def test_a_body_of_many_small_values_is_not_parsed(data, monkeypatch):
    """Nobody else is served meanwhile."""
    monkeypatch.setattr(body.json, "loads", lambda _: pytest.fail("parsed"))
    with raises("malformed_body"):
        await body.read_json(_sent(data), len(data))


async def test_a_long_text_is_one_value():
    """However many commas, quotes and brackets it has."""
    text = ',[{\\"' * 30_000
    data = json.dumps({"input": text}).encode()
    assert await body.read_json(_sent(data), len(data)) == {"input": text}


@pytest.mark.parametrize("read", [body.read_form, body.read_json])
async def test_a_caller_that_stops_in_the_middle_of_its_upload_is_not_waited_for(read, monkeypatch):
    """As a phone does whose network is gone: no end of the connection tells of it, and its place is given back."""
    monkeypatch.setattr(body, "STALLED_S", 0.05)
    messages = [{"type": "http.request", "body": b"--b\r\n", "more_body": True}]

    async def receive():
        return messages.pop(0) if messages else await asyncio.Event().wait()

    scope = {"type": "http", "headers": [(b"content-type", FORM)]}
    with raises("upload_stalled"):
        await read(Request(scope, receive), 1000)


def _paced(monkeypatch, parts):
    """Receives parts of so many bytes, each after so many seconds of a clock of its own."""
    now_s = 0.0
    monkeypatch.setattr(body, "time", SimpleNamespace(monotonic=lambda: now_s))

    async def receive():
        nonlocal now_s
        size, after_s = parts.pop(0)
        now_s += after_s
        return {"type": "http.request", "body": bytes(size), "more_body": bool(parts)}

    return receive


async def _whole(read):
    while (await read())["more_body"]:
        pass


@pytest.mark.parametrize(
    ("parts", "left", "said"),
    [
        ([(8_000_000, 0)] + [(1, 4)] * 100, 70, "too slow"),  # what came fast at first does not count for long
        ([(1, 4)] * 100, 85, "too slow"),
        ([(65_536, 10)] * 2_000, 2_000 - 1_441, "4:00:00"),  # whatever its rate
    ],
)
async def test_an_upload_that_trickles_or_takes_for_ever_is_ended(monkeypatch, parts, left, said):
    """A slow upload is refused after two minutes at most, even if it never pauses for long."""
    read = body.BodyReader(_paced(monkeypatch, parts), 1_000_000_000)
    with raises("upload_stalled", match=said):
        await _whole(read)
    assert len(parts) == left


@pytest.mark.parametrize(
    ("part", "count"),
    [
        ((300, 1), 7_000),  # two hours of speech at 2.4 kbit/s, sent while it is recorded
        ((50_000, 50), 200),  # a train with tunnels
        ((65_536, 4), 3_200),  # 200 MiB over 128 kbit/s
    ],
)
async def test_a_slow_network_may_upload(monkeypatch, part, count):
    """Steady progress is enough."""
    read = body.BodyReader(_paced(monkeypatch, [part] * count), 1_000_000_000)
    await _whole(read)
    assert read.size == count * part[0]


async def test_a_text_takes_minutes_at_most(monkeypatch):
    """It is in the memory meanwhile. Steady progress is not enough for longer."""
    parts = [(65_536, 10)] * 100
    request = Request({"type": "http", "headers": []}, _paced(monkeypatch, parts))
    with raises("upload_stalled", match="0:06:00"):
        await body.read_json(request, 1_000_000_000)
    assert len(parts) == 100 - 37


async def test_the_time_in_which_the_server_does_not_read_is_not_the_clients(monkeypatch):
    """As where the engine process starts."""
    now_s = 0.0
    monkeypatch.setattr(body, "time", SimpleNamespace(monotonic=lambda: now_s))

    async def receive():
        return {"type": "http.request", "body": b"a", "more_body": True}

    read = body.BodyReader(receive, 1_000)
    for _ in range(5):
        await read()
        now_s += 3_600
    assert read.size == 5


async def test_a_full_disk_is_reported_as_that(monkeypatch):
    """The tmpfs of a container, say: trying again later may do, and nothing is wrong with the request."""

    class Full(tempfile.SpooledTemporaryFile):
        def write(self, _):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("starlette.formparsers.SpooledTemporaryFile", Full)
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nabc\r\n--b--\r\n'
    with raises("uploads_unavailable", match="No space left"):
        await body.read_form(_sent(part), 1000)
