"""Form fields in the spellings that clients use."""

import asyncio
import io
import json
import tempfile
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.requests import Request

from asr_server.core.conftest import raises
from asr_server.net import body
from asr_server.net.body import FormParser

FORM = b"multipart/form-data; boundary=b"
DEEP, NEST = "[" * 100_000, '{"a":' * 100_000  # nested too deep for a reader of JSON
NAMES = frozenset({"model", "language", "stream"})


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


def test_the_last_scalar_wins_and_blank_is_absent():
    """Given twice, the last counts; empty strings mean that the field was left out."""
    form = FormData([("model", "a"), ("model", "b"), ("language", " "), ("other", "x")])
    assert body.scalars(form, NAMES) == {"model": "b"}


async def test_a_declared_length_over_the_cap_is_refused_before_anything_is_read():
    """Otherwise a client would send hundreds of megabytes that nobody wants."""
    headers = [(b"content-type", FORM), (b"content-length", b"1001")]
    with raises("file_too_large"):
        await body.read_form(Request({"type": "http", "headers": headers}, _never), 1000)


def _sent(*pieces, kind=b"", query=b""):
    left = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]

    async def receive():
        return left.pop(0) if left else {"type": "http.request", "body": b"", "more_body": False}

    headers = [(b"transfer-encoding", b"chunked"), *([(b"content-type", kind)] if kind else [])]
    return Request({"type": "http", "headers": headers, "query_string": query}, receive)


@pytest.mark.parametrize("kind", [b"", b"audio/flac", b"application/octet-stream", b"Video/MP4"])
async def test_a_body_may_be_the_recording_with_its_fields_in_the_query(kind):
    """As curl -T and ffmpeg send it; the file is the body, whatever its parts were."""
    form = await body.read_form(_sent(b"ab", b"cd", kind=kind, query=b"model=a&language=en"), 1000)
    assert body.scalars(form, frozenset({"model", "language"})) == {"model": "a", "language": "en"}
    file = body.upload(form, "file")
    assert (await file.read(), file.size) == (b"abcd", 4)
    await form.close()


async def test_fields_of_a_form_go_before_those_of_the_query():
    """Both count."""
    part = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nb\r\n--b--\r\n'
    request = _sent(part, kind=FORM, query=b"model=a&language=en")
    form = await body.read_form(request, 1000)
    assert body.scalars(form, frozenset({"model", "language"})) == {"model": "b", "language": "en"}


@pytest.mark.parametrize(
    ("kind", "rate_hz", "channels"), [(b"audio/pcm", 16_000, 1), (b"audio/pcm; rate=8000;channels=2", 8_000, 2)]
)
async def test_samples_without_a_header_get_one(kind, rate_hz, channels):
    """A decoder reads them as a WAV file."""
    samples = np.arange(-100, 100, dtype="<i2")
    form = await body.read_form(_sent(samples.tobytes(), kind=kind), 1000)
    file = body.upload(form, "file")
    found, rate = soundfile.read(file.file, dtype="int16", always_2d=True)
    assert (rate, found.shape[1], file.size) == (rate_hz, channels, 400)
    assert found.ravel().tolist() == samples.tolist()
    await form.close()


@pytest.mark.parametrize(
    "kind", [b"audio/pcm;rate=1", b"audio/pcm;rate=x", b"audio/pcm;channels=99", b"text/plain", b"application/json"]
)
async def test_a_body_of_another_type_is_refused(kind):
    """Nothing of it is decoded."""
    with raises("unsupported_content_type"):
        await body.read_form(_sent(b"abcd", kind=kind), 1000)


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
    ("parts", "left"),
    [
        ([(8_000_000, 0)] + [(1, 4)] * 100, 70),  # what came fast at first does not count for long
        ([(1, 4)] * 100, 85),
    ],
)
async def test_an_upload_that_trickles_is_ended(monkeypatch, parts, left):
    """After two minutes at most, although it never stops for long."""
    read = body.BodyReader(_paced(monkeypatch, parts), 1_000_000_000)
    with raises("upload_stalled", match="too slow"):
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


async def test_no_upload_takes_for_ever(monkeypatch):
    """Whatever its rate."""
    parts = [(65_536, 10)] * 2_000
    read = body.BodyReader(_paced(monkeypatch, parts), 1_000_000_000)
    with raises("upload_stalled", match="4:00:00"):
        await _whole(read)
    assert len(parts) == 2_000 - 1_441


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
        await body.read_form(_sent(part, kind=FORM), 1000)


def test_the_last_file_of_a_name_counts():
    """As the last of a text field does."""
    files = [UploadFile(io.BytesIO(), filename=name) for name in ("first.wav", "last.wav")]
    form = FormData([("file", files[0]), ("file", files[1]), ("file", "text")])
    assert body.upload(form, "file") is files[1]
    assert body.upload(form, "files") is None


@pytest.mark.parametrize("text", [b'{"input": "\\ud800"}', b'{"\\udfff": 1}', b'["\\ud83d"]'])
async def test_half_a_character_is_no_json(text):
    """Such a text could be neither stored nor sent back."""

    with raises("malformed_body"):
        await body.read_json(_sent(text), 1_000)
