"""Decoders that die, crash, hang or never come to an end: one caller is told so, nobody else notices."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from E2Etest.chaos import bombs, hasty
from E2Etest.drive.process import running
from E2Etest.drive.procfs import decoder_at_work, decoders, fork_server, until

pytestmark = pytest.mark.guarantee("codec")

LIMITS = {"MAX_AUDIO_S": "40000", "MAX_QUEUE_AUDIO_S": "100000", "IDLE_TIMEOUT": "0"}


@pytest.fixture(scope="module")
def server(tmp_path_factory, sample, fake_sample):
    """A running server that has decoded before, and gives a file little time."""
    log = tmp_path_factory.mktemp("codec") / "log"
    with running(log, program=[hasty.__file__], **LIMITS, **fake_sample) as found:
        assert found.transcribe(sample[0]).json()["text"] == sample[1]
        yield found


@pytest.fixture(scope="module")
def long():
    """Ten hours of silence: under the limit here, and many seconds of work for a decoder."""
    return bombs.opus(36_000)


def _is_refused_alone(server, answer, sample, parent):
    """400 for the one; the next is heard, by a child of the same parent, and nothing was logged as a fault."""
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_audio")
    assert server.transcribe(sample[0]).json()["text"] == sample[1]
    assert fork_server(server.process.pid) == parent
    assert "Traceback" not in server.log()


@pytest.mark.parametrize("fatal", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT], ids=lambda number: number.name)
def test_a_decoder_that_dies_at_work_hurts_its_own_request(server, long, sample, note, fatal):
    """Others are decoded and heard meanwhile, in children of the same parent."""
    parent = fork_server(server.process.pid)
    with ThreadPoolExecutor(3) as pool:
        hurt = pool.submit(server.transcribe, long)
        child = decoder_at_work(server)
        others = [pool.submit(server.transcribe, sample[0]) for _ in range(2)]
        os.kill(child, fatal)
        _is_refused_alone(server, hurt.result(), sample, parent)
    assert [other.result().json()["text"] for other in others] == [sample[1]] * 2
    note(f"{fatal.name}: 400, two others transcribed meanwhile")


@pytest.mark.parametrize("fault", ["hangs", "works on"])
def test_a_decoder_that_does_not_come_to_an_end_is_ended(server, long, sample, note, fault):
    """Its time is up whether it waits or works; the process is gone."""
    parent, began_s = fork_server(server.process.pid), time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        hurt = pool.submit(server.transcribe, long)
        child = decoder_at_work(server)
        if fault == "hangs":
            os.kill(child, signal.SIGSTOP)
        answer = hurt.result()
    took_s = time.monotonic() - began_s
    _is_refused_alone(server, answer, sample, parent)
    until(lambda: child not in decoders(server.process.pid))
    note(f"a decoder that {fault} beyond {hasty.LIMIT_S:g} s: 400 after {took_s:.1f} s")
