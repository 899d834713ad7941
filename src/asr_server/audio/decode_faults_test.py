"""Faults that the decoder survives: killed processes, limits, cancelled decodes. Nothing is left after them."""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry

from asr_server.audio import decode, decoder_wire
from asr_server.audio.conftest import decoded, encode, open_bytes, read_all, tone, wav
from asr_server.audio.decode import Decoder
from asr_server.audio.decoder_wire import DecodeLimits
from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.conftest import counts, raises, until
from asr_server.core.errors import DecoderUnavailable, ShuttingDown
from asr_server.core.idle import end_expired
from asr_server.processes import launcher
from asr_server.processes.messages import packed
from E2Etest.drive.procfs import family

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def decoder():
    decoder = Decoder(DecodeLimits(max_audio_s=600.0))
    yield decoder
    await decoder.close()


def second():
    """A second of silence that a child has to decode."""
    return wav(bytes(4 * SAMPLE_RATE), channels=2)


@contextlib.asynccontextmanager
async def begun(decoder, seconds=200):
    """A long file under way, of which the first block was read."""
    with wav(bytes(seconds * 2 * SAMPLE_RATE)) as file:
        async with aclosing(decoder.stream(file)) as blocks:
            await anext(blocks)
            yield blocks


async def works(decoder):
    with second() as file:
        return len(await decoded(decoder, file)) == SAMPLE_RATE


def descriptors(pid="self"):
    return len(os.listdir(f"/proc/{pid}/fd"))


async def test_a_slow_reader_is_not_timed_out():
    """Time that the reader takes for itself does not count against the file, which keeps its share of the memory."""
    limits = DecodeLimits(max_audio_s=600.0, cpu_s=0.3)
    decoder = Decoder(limits)
    await works(decoder)
    async with begun(decoder, seconds=40) as blocks:
        await asyncio.sleep(1.4)
        assert decoder.memory.held == limits.of_file(44 + 40 * 2 * SAMPLE_RATE).memory_bytes
        assert decoder.places.held == 0
        assert 0 < 40 * SAMPLE_RATE - sum([len(block) async for block in blocks]) <= 65_536  # the first block
    assert decoder.memory.held == 0
    await decoder.close()


async def test_notes_without_end_leave_the_event_loop_to_others():
    """A child that was taken over may send them. The time limit of the file ends that."""
    request = replace(DecodeLimits(max_audio_s=600.0).of_file(1_000), cpu_s=0.1)

    def send(fd):
        with open(fd, "wb", buffering=0) as pipe, contextlib.suppress(BrokenPipeError):
            while True:
                pipe.write(packed({}))

    async def read(frames):
        while True:
            await frames.next()

    async def others():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turns = 0
    with decode.FrameReader(request) as frames:
        sender = asyncio.create_task(asyncio.to_thread(send, os.dup(frames.write_fd)))
        other = asyncio.create_task(others())
        with pytest.raises(TimeoutError):
            await read(frames)
        other.cancel()
    await sender
    assert turns > 10


async def test_memory_limit():
    decoder = Decoder(DecodeLimits(max_audio_s=600.0, memory_bytes=32 * 1024 * 1024))
    assert await works(decoder)
    with wav(bytes(40_000_000), 96_000, channels=32, bits=32) as file, raises("invalid_audio"):
        await decoded(decoder, file)
    assert await works(decoder)
    await decoder.close()


async def test_each_block_has_cpu_time_of_its_own(decoder, monkeypatch):
    monkeypatch.setattr(decoder_wire, "BLOCK_CPU_S", (0.1, 0.0))
    with wav(bytes(600 * 48_000 * 2), 48_000) as file:
        assert len(await decoded(decoder, file)) == 600 * SAMPLE_RATE


async def test_the_first_block_has_little_cpu_time(decoder, monkeypatch):
    """A file without audio within that time fails with `invalid_audio`, long before the whole time limit."""
    monkeypatch.setattr(decoder_wire, "FIRST_CPU_S", (0.01, 0.0))
    monkeypatch.setattr(decode, "WAIT_PER_CPU_S", 1_000.0)
    content = read_all(encode("mp3", "libmp3lame", tone(1.0, 44_100), 44_100))
    with open_bytes(b"\xff" * 5_000_000 + content) as file, raises("invalid_audio", match="damaged"):
        await decoded(decoder, file)


async def test_no_caller_takes_every_place(decoder):
    """A caller who has filled the shared places and memory waits, and another does not."""
    shared_bytes, places = DecodeLimits(600.0).shared_memory_bytes, len(os.sched_getaffinity(0))
    async with AsyncExitStack() as held:
        for _ in range(places):
            await held.enter_async_context(decoder.places.taken("a"))
        await held.enter_async_context(decoder.memory.taken("a", shared_bytes))
        with second() as file:
            waiting = asyncio.create_task(decoded(decoder, file, caller="a"))
            assert len(await decoded(decoder, file, caller="b")) == SAMPLE_RATE
            assert not waiting.done()
            await held.aclose()
            assert len(await waiting) == SAMPLE_RATE


async def test_fork_server_killed_with_a_file_in_hand(decoder):
    """A fork server that dies before the first sample costs a second attempt, not the request."""
    await decoder.fork_server.close()
    with second() as file:
        decoding = asyncio.create_task(decoded(decoder, file))
        await until(lambda: decoder.fork_server.pid is not None)
        os.kill(decoder.fork_server.pid or 0, signal.SIGKILL)
        assert len(await decoding) == SAMPLE_RATE


async def test_a_stopped_fork_server_is_replaced():
    """Files that a stopped fork server keeps waiting are served by another, and it is ended with its children."""
    decoder = Decoder(DecodeLimits(max_audio_s=600.0))
    await works(decoder)
    members = family(decoder.fork_server.pid)
    os.kill(members[0], signal.SIGSTOP)
    assert all(await asyncio.gather(*(works(decoder) for _ in range(4))))
    assert decoder.fork_server.pid not in members
    await until(lambda: not any(_runs(pid) for pid in members))
    await decoder.close()


@pytest.mark.parametrize("program", ["exec sleep 60", "exit 1"])
async def test_a_decoder_that_never_starts_is_not_the_files_fault(monkeypatch, tmp_path, program):
    """A fork server that hangs from its start or ends at once gives `DecoderUnavailable` after three attempts."""
    monkeypatch.setattr(launcher, "_FIRST_ANSWER_S", 0.5)
    registry = CollectorRegistry()
    decoder = Decoder(DecodeLimits(max_audio_s=600.0), registry=registry)
    (tmp_path / "python").write_text(f"#!/bin/sh\n{program}\n")
    (tmp_path / "python").chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with second() as file, pytest.raises(DecoderUnavailable):
        await decoded(decoder, file)
    assert counts(registry, "asr_decoder_failures_total") == {("decoder_unavailable",): 1}
    monkeypatch.undo()
    assert await works(decoder)
    await decoder.close()


async def test_fork_server_killed_mid_file(decoder):
    """The children die with the server; the file is begun again, and its reader gets each sample once."""
    await works(decoder)
    noise = np.random.default_rng(1).integers(-9_000, 9_000, 200 * SAMPLE_RATE, np.int16)
    with wav(noise.tobytes()) as file:
        async with aclosing(decoder.stream(file)) as blocks:
            heard = [await anext(blocks)]
            members = family(decoder.fork_server.pid)
            os.kill(members[0], signal.SIGKILL)
            heard += [block async for block in blocks]
    np.testing.assert_allclose(np.concatenate(heard), noise / 32_768, atol=1e-6)
    await until(lambda: not any(_runs(pid) for pid in members))


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


async def test_cancelled_decodes_leave_nothing_behind(decoder):
    """Cancelled decodes, abandoned streams and errors leave no process and no descriptor, nor in the fork server."""
    await works(decoder)
    await until(lambda: len(family(decoder.fork_server.pid)) == 2)
    fork_server_pid = decoder.fork_server.pid
    assert fork_server_pid is not None
    before, before_in_fork_server = descriptors(), descriptors(fork_server_pid)
    with encode("flac", "flac", np.zeros((1, 120 * 48_000), np.float32), 48_000) as file, open_bytes(b"no") as text:
        for delay_s in (0.0, 0.001, 0.003, 0.01, 0.02):
            cancelled = [asyncio.create_task(decoded(decoder, file)) for _ in range(4)]
            await asyncio.sleep(delay_s)
            for task in cancelled:
                task.cancel()
            done = await asyncio.gather(*cancelled, return_exceptions=True)
            assert any(isinstance(outcome, asyncio.CancelledError) for outcome in done)
            async with aclosing(decoder.stream(file)) as blocks:
                await anext(blocks)
            with raises("invalid_audio"):
                await decoded(decoder, text)
        # Not equal: what an earlier test has left may be closed meanwhile.
        await until(lambda: descriptors() - 2 <= before)
        await until(lambda: descriptors(fork_server_pid) <= before_in_fork_server)
    await until(lambda: len(family(decoder.fork_server.pid)) == 2)
    assert decoder.fork_server.pid == fork_server_pid
    assert await works(decoder)


async def test_many_at_once(decoder):
    with contextlib.ExitStack() as opened:
        files = [opened.enter_context(wav(np.full(3_200, i / 64, "<f4").tobytes(), bits=32, tag=3)) for i in range(40)]
        answers = await asyncio.gather(*(decoded(decoder, file) for file in files))
    assert [round(float(samples.mean()) * 64) for samples in answers] == list(range(40))


async def test_a_file_that_the_disk_does_not_take_is_not_at_fault(decoder):
    with tempfile.SpooledTemporaryFile(max_size=1 << 20) as file:
        file.write(b"RIFF")
        file.rollover = Mock(side_effect=OSError(28, "No space left on device"))
        with raises("uploads_unavailable", match="No space left"):
            await decoded(decoder, file)


async def test_idle_decoder_is_ended():
    """The process ends only when it was idle for long enough; the next file starts it anew."""
    decoder = Decoder(DecodeLimits(max_audio_s=60.0), idle_timeout_s=0.3)
    assert await works(decoder)
    pid = decoder.fork_server.pid
    await end_expired([decoder])
    assert decoder.fork_server.pid == pid
    await asyncio.sleep(0.3)
    await end_expired([decoder])
    assert decoder.fork_server.pid is None
    assert not _runs(pid or 0)
    assert await works(decoder)
    await decoder.close()


async def test_closing_ends_what_runs():
    """`close` ends running decodes and later ones with `ShuttingDown`, and leaves no process."""
    decoder = Decoder(DecodeLimits(max_audio_s=600.0))
    async with begun(decoder) as blocks:
        members = family(decoder.fork_server.pid)
        await decoder.close()
        with pytest.raises(ShuttingDown):
            [_ async for _ in blocks]
    with second() as file, pytest.raises(ShuttingDown):
        await decoded(decoder, file)
    await until(lambda: not any(_runs(pid) for pid in members))
