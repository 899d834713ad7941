"""Form fields in the spellings that clients use."""

import asyncio
import json
import tempfile
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from starlette.datastructures import FormData
from starlette.requests import Request

from asr_server.core.conftest import Clock, raises
from asr_server.net import body

FORM, END = b"multipart/form-data; boundary=b", b"\r\n--b--\r\n"
DEEP, NEST = "[" * 100_000, '{"a":' * 100_000  # nested too deep for a reader of JSON


@pytest.mark.parametrize(
    ("read", "items", "expected"),
    [
        (body.listed, [("k[]", "a"), ("k[]", "b")], ["a", "b"]),
        (body.listed, [("k[0]", "a"), ("k[1]", "b")], ["a", "b"]),
        (body.listed, [("k", " a , b "), ("k", "")], ["a", "b"]),
        (body.listed, [("k", '["a", "b"]')], ["a", "b"]),
        (body.listed, [("kk", "x"), ("k[x]", "y"), ("k", "")], []),  # these are other fields
        (body.listed, [("k", "[oops")], ["[oops"]),  # a broken array is words
        pytest.param(body.listed, [("k", DEEP)], [DEEP], id="deep list"),
        (body.nested, [("k[type]", "server_vad"), ("k[rate]", "0.4")], {"type": "server_vad", "rate": "0.4"}),
        (body.nested, [("k", '{"type": "server_vad", "rate": 0.4}')], {"type": "server_vad", "rate": 0.4}),
        (body.nested, [("k", '"auto"')], "auto"),
        (body.nested, [("k", "auto")], "auto"),
        (body.nested, [("k", "{oops")], "{oops"),
        (body.nested, [("k", " ")], None),
        (body.nested, [("kk[type]", "x")], None),
        pytest.param(body.nested, [("k", NEST)], NEST, id="deep object"),
    ],
)
def test_lists_and_objects_are_read_in_every_spelling(read, items, expected):
    """Repeated, bracketed, indexed, comma-joined or as JSON. What is broken stays text."""
    assert read(FormData(items), "k") == expected


@pytest.mark.parametrize(
    ("name", "limit", "said"), [("known_speaker_references[]", 8 * 2**20, "8 MiB"), ("prompt", 256 * 1024, "256 KiB")]
)
async def test_text_is_bounded_by_its_kind(name, limit, said):
    """Recordings of speakers, as text, have a bound of their own. What is not over the bound is read."""
    head = f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode()
    form = await body.read_form(_sent(head + bytes(limit) + END), 2 * limit)
    assert len(form[name]) == limit
    with raises("malformed_body", match=said):
        await body.read_form(_sent(head + bytes(limit + 1) + END), 2 * limit)


async def test_a_declared_length_over_the_cap_is_refused_before_anything_is_read():
    """Otherwise a client would send hundreds of megabytes that nobody wants."""
    headers = [(b"content-type", FORM), (b"content-length", b"1001")]
    with raises("file_too_large"):
        await body.read_form(Request({"type": "http", "headers": headers}, None), 1000)


def _sent(data):
    async def receive():
        return {"type": "http.request", "body": data, "more_body": False}

    return Request({"type": "http", "headers": [(b"content-type", FORM)], "query_string": b""}, receive)


UTF_16 = ('{"a":["\\"",' + "0," * 30_000 + "0]}").encode("utf-16")  # by its bytes it is one string


@pytest.mark.parametrize(
    "data", [b'{"a":[' + b"0," * 20_001 + b"0]}", b'{"a":[' + b'"",' * 10_001 + b'""]}', b"[" * 20_002, UTF_16]
)
async def test_a_body_of_many_small_values_is_not_parsed(data, monkeypatch):
    """Nobody else is served meanwhile."""
    monkeypatch.setattr(body.json, "loads", lambda _: pytest.fail("parsed"))
    with raises("malformed_body"):
        await body.read_json(_sent(data), len(data))


async def test_a_long_text_is_one_value():
    """However many commas, quotes and brackets it has. A byte order mark, as Windows writes, is no part of it."""
    data = json.dumps({"input": ',[{\\"' * 30_000}).encode()
    assert await body.read_json(_sent(b"\xef\xbb\xbf" + data), len(data) + 3) == json.loads(data)


async def test_a_caller_that_stops_in_the_middle_of_its_upload_is_not_waited_for(monkeypatch):
    """As a phone does whose network is gone: no end of the connection tells of it, and its place is given back."""
    monkeypatch.setattr(body, "STALLED_S", 0.05)
    with raises("upload_stalled"):
        await body.BodyReader(asyncio.Event().wait, 1000)()


def _paced(monkeypatch, parts):
    """Receives parts of so many bytes, each after so many seconds of a clock of its own."""
    clock = Clock()
    monkeypatch.setattr(body, "time", SimpleNamespace(monotonic=clock))

    async def receive():
        size, after_s = parts.pop(0)
        clock.now_s += after_s
        return {"type": "http.request", "body": bytes(size), "more_body": bool(parts)}

    return receive


@pytest.mark.parametrize(
    ("parts", "left", "said"),
    [
        ([(8_000_000, 0)] + [(1, 4)] * 100, 70, "too slow"),  # what came fast at first does not count for long
        ([(65_536, 10)] * 2_000, 2_000 - 1_441, "4:00:00"),  # whatever its rate
        ([(300, 1)] * 7_000, 0, None),  # two hours of speech at 2.4 kbit/s, sent while it is recorded
        ([(50_000, 50)] * 200, 0, None),  # a train with tunnels
    ],
)
async def test_an_upload_that_trickles_or_takes_for_ever_is_ended(monkeypatch, parts, left, said):
    """A trickling upload is refused after two minutes at most. Steady progress is enough."""
    read = body.BodyReader(_paced(monkeypatch, parts), 1_000_000_000)
    with raises("upload_stalled", match=said) if said else nullcontext():
        while (await read())["more_body"]:
            pass
    assert len(parts) == left


async def test_a_text_takes_minutes_at_most(monkeypatch):
    """It is in the memory meanwhile. Steady progress is not enough for longer."""
    parts = [(65_536, 10)] * 100
    request = Request({"type": "http", "headers": []}, _paced(monkeypatch, parts))
    with raises("upload_stalled", match="0:06:00"):
        await body.read_json(request, 1_000_000_000)
    assert len(parts) == 100 - 37


async def test_the_time_in_which_the_server_does_not_read_is_not_the_clients(monkeypatch):
    """As while the engine process starts."""
    read = body.BodyReader(_paced(monkeypatch, [(1, 0)] * 5), 1_000)
    while (await read())["more_body"]:
        body.time.monotonic.now_s += 3_600
    assert read.size == 5


async def test_a_full_disk_is_reported_as_that(monkeypatch):
    """The tmpfs of a container, say: trying again later may do, and nothing is wrong with the request."""
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "write", full)
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nabc' + END
    with raises("uploads_unavailable", match="No space left"):
        await body.read_form(_sent(part), 1000)
