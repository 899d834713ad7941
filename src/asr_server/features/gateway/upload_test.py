"""A body on its way through."""

import asyncio
import tempfile

import pytest

from asr_server.core.errors import Cancelled, FileTooLarge, UploadStalled, UploadsUnavailable
from asr_server.features.gateway.upload import Upload

MIB = 1024 * 1024


def _receive(*parts, then="wait"):
    """What the ASGI server hands out: the parts, then nothing more or the end of the connection."""
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
    """As by the worker: trying again later may do."""
    upload = make(_receive(b"a" * MIB, b"b"))

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(upload._file, "write", full, raising=False)
    with pytest.raises(UploadsUnavailable, match="No space left"):
        await _read(upload)


async def test_a_directory_for_temporary_files_that_vanishes_meanwhile_is_made_again(tmp_path, monkeypatch):
    """Behind the first part, before so much is there that it is written to a file."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    parts = [bytes(1024), bytes(2 * 1024 * 1024)]

    async def receive():
        body = parts.pop(0)
        (tmp_path / "temporary").rmdir()
        return {"type": "http.request", "body": body, "more_body": bool(parts)}

    upload = Upload(receive, 4 * 1024 * 1024)
    assert sum([len(piece) async for piece in upload]) == 2 * 1024 * 1024 + 1024
    upload.close()
