"""Peers of the live socket that take nothing up, or send in sizes that nobody would: what they may hold."""

import asyncio
import json
import select
import time
from contextlib import ExitStack

import numpy as np
import pytest
import soxr

from E2Etest.chaos.neighbours import opened
from E2Etest.drive import recordings
from E2Etest.drive.process import ready
from E2Etest.drive.session import act, data, finals, open_session, pieces, stream, upto_flush
from E2Etest.drive.wire import TEXT, frame, handshake
from tools.guarantees import GUARANTEES

pytestmark = [pytest.mark.websocket, pytest.mark.performance, pytest.mark.guarantee("sockets")]

SHARE_MB = GUARANTEES["sockets"].bounds["held_mib"].limit
TRIES = 3
PEERS = 4
USUAL_BYTES = 3_200  # a tenth of a second at 16 kHz
FRAME_BYTES, RATE_HZ = 10_000_000, 48_000
GIVE_UP_S = 60
SPEECH = data(np.concatenate([recordings.samples(), np.zeros(14_400, np.int16)]))
MIB = 1024 * 1024


def _ended(line, wait_ms):
    poll = select.poll()
    poll.register(line, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(wait_ms))


def _floods(line):
    """Send speech and actions without reading. Return the seconds and the bytes until the server closes the socket."""
    burst = frame(SPEECH[:3_200]) + frame(json.dumps({"action": "config", "language": "en"}).encode(), TEXT) * 100
    line.settimeout(1)
    began_s, sent = time.monotonic(), 0
    while time.monotonic() - began_s < GIVE_UP_S:
        try:
            sent += line.send(burst)
        except TimeoutError:
            if _ended(line, 0):
                break
        except OSError:
            break
    return time.monotonic() - began_s, sent


def _is_silent(line):
    """Stay silent. Return the seconds until the server closes the socket, and the bytes that it sent."""
    began_s, parts = time.monotonic(), []
    assert _ended(line, 1000 * GIVE_UP_S)
    took_s = time.monotonic() - began_s
    while part := line.recv(65_536):
        parts.append(part)
    return took_s, b"".join(parts)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """A server that has loaded the model, and whose C library gives every larger block back at once: what its process
    has is what it holds."""
    log = tmp_path_factory.mktemp("sockets") / "log"
    with ready(log, WS_RESUME_S="0", MALLOC_MMAP_THRESHOLD_="65536") as server:
        yield server


async def _most_mb(server, work):
    """How many MiB the server's process had at most while it was done, and what it brought."""
    most_mb = server.own_mb()
    task = asyncio.gather(*work)
    while not task.done():
        most_mb = max(most_mb, server.own_mb())
        await asyncio.sleep(0.01)
    return most_mb, await task


async def _least_mb(measure):
    """What is measured, in MiB, at least in some tries: a process moves by tens of MiB for other reasons too."""
    least_mb = await measure()
    for _ in range(TRIES - 1):
        if least_mb < SHARE_MB:
            break
        least_mb = min(least_mb, await measure())
    return least_mb


async def test_who_never_reads_is_gone_and_has_held_little(loaded, measured, note):
    """Some are silent, as half-open connections are, some send without end: the server ends them all, meanwhile serves
    others, and keeps nothing of them."""
    all_gone_s = []

    async def share_mb():
        usual_mb, (heard,) = await _most_mb(loaded, [asyncio.to_thread(stream, loaded, [SPEECH])])
        with ExitStack() as held:
            lines = [held.enter_context(opened(loaded, handshake("/ws/transcribe"))) for _ in range(2 * PEERS)]
            works = [asyncio.to_thread(_is_silent, line) for line in lines[:PEERS]]
            works += [asyncio.to_thread(_floods, line) for line in lines[PEERS:]]
            most_mb, (*peers, beside) = await _most_mb(loaded, [*works, asyncio.to_thread(stream, loaded, [SPEECH])])
        assert finals(beside) == finals(heard)
        assert all((1011).to_bytes(2, "big") + b"keepalive ping timeout" in told for _, told in peers[:PEERS])
        live = loaded.health()["live"]
        assert (live["sessions"], live["waiting"]) == (0, 0)
        all_gone_s.extend(gone_s for gone_s, _ in peers)
        return (most_mb - usual_mb - sum(sent for _, sent in peers[PEERS:]) / MIB) / (2 * PEERS)

    measured("held_mib", max(0.0, await _least_mb(share_mb)))
    measured("closed_s", max(all_gone_s))
    note(f"{PEERS} silent and {PEERS} flooding peers; frames of 1 byte and of 10 MB")


RESAMPLED = data(soxr.resample(np.frombuffer(SPEECH, np.int16), 16_000, RATE_HZ))
LARGE = RESAMPLED + bytes(FRAME_BYTES - len(RESAMPLED))
# The peers, the sound, the usual and the other size of a frame, the sample rate, and what a peer's sound takes in MiB.
SIZES = {
    "one byte": (PEERS, SPEECH, USUAL_BYTES, 1, 16_000, 0),
    # All of it is there before the first of it is heard. (A caller may have 34 MiB of unfinished messages.)
    "ten megabytes": (3, LARGE, 6 * USUAL_BYTES, FRAME_BYTES, RATE_HZ, FRAME_BYTES / MIB),
}


@pytest.mark.parametrize("name", SIZES)
async def test_frames_of_other_sizes_hold_no_more(loaded, measured, name):
    """And they are the same words."""
    peers, sound, usual_bytes, other_bytes, rate, own_mb = SIZES[name]

    def works(size):
        body = b"".join(frame(part) for part in pieces(sound, size))
        return [asyncio.to_thread(_spoken, loaded, body, sample_rate=rate) for _ in range(peers)]

    async def share_mb():
        usual_mb, usual = await _most_mb(loaded, works(usual_bytes))
        most_mb, found = await _most_mb(loaded, works(other_bytes))
        assert found == usual == usual[:1] * peers
        assert usual[0]
        # A frame is there twice while its mask is taken off, which happens to one after the other.
        return (most_mb - usual_mb - own_mb) / peers - own_mb

    measured("held_mib", max(0.0, await _least_mb(share_mb)))


def _spoken(server, body, **query):
    """The finals of a session whose frames go out as they are."""
    with open_session(server, **query) as session:
        session.socket.sendall(body)
        act(session, "flush")
        return finals(upto_flush(session))
