"""Files that are slow to decode or make large decoders, and a process that starts decoders no more."""

import os
import signal
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from E2Etest.chaos import bombs
from E2Etest.chaos.neighbours import KEYS, Attack, Neighbour, under
from E2Etest.drive.process import ready
from E2Etest.drive.procfs import decoders, fork_server, resident_mb

pytestmark = pytest.mark.performance

AT_ONCE = 8
TIMES = 9


@pytest.fixture(scope="module")
def server(tmp_path_factory, sample):
    """A server with two keys that has decoded before."""
    with ready(tmp_path_factory.mktemp("decoders") / "log", API_KEYS=KEYS) as found:
        assert found.transcribe(sample[0]).json()["text"] == sample[1]
        yield found


@pytest.mark.guarantee("shares")
def test_slow_files_of_one_key_do_not_stop_another(server, sample, measured, note):
    """One key sends nothing but files that are sorted for seconds before a sample comes; the other a short clip."""
    file, answers = bombs.backwards(100_000), []
    attack = Attack(4, lambda server, n: answers.append(server.transcribe(file)))
    with closing(Neighbour(server)) as neighbour:
        alone_s = statistics.median(neighbour.recordings_s(TIMES, 0.2, sample[0]))
        with under(server, attack) as steps:
            time.sleep(3)
            beside_s = neighbour.recordings_s(TIMES, 0.2, sample[0])
    assert len(answers) == steps() >= attack.callers
    # A fast machine comes to the end of such a file, in which there is nothing, before the limit of its time.
    codes = {answer.json()["error"]["code"] for answer in answers}
    assert codes - {"rate_limit_exceeded"} <= {"invalid_audio", "audio_too_short"}
    note(f"slow files: {1000 * alone_s:.0f} ms alone, {1000 * statistics.median(beside_s):.0f} ms beside them")
    measured("beside_ratio", statistics.median(beside_s) / alone_s)


@pytest.mark.guarantee("decoded-cap")
def test_small_files_do_not_make_large_decoders(server, sample, measured, note):
    """Eight files of 9 kB at once, whose tables would take 285 MiB each."""
    fresh_mb = min(resident_mb(pid) for pid in decoders(server.process.pid))
    most_mb, began_s = 0.0, time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        works = [pool.submit(server.transcribe, bombs.counted(8_000_000)) for _ in range(AT_ONCE)]
        while not all(work.done() for work in works):
            grown = (resident_mb(pid) - fresh_mb for pid in decoders(server.process.pid))
            most_mb = max(most_mb, sum(mb for mb in grown if mb > 0))
            time.sleep(0.005)
    measured("refusal_s", time.monotonic() - began_s)
    assert {work.result().status_code for work in works} <= {200, 400}
    note(f"{AT_ONCE} files of 9 kB with tables of 285 MiB: decoders {most_mb:+.0f} MiB together")
    measured("decoders_mib", most_mb)
    assert server.transcribe(sample[0]).json()["text"] == sample[1]


@pytest.mark.guarantee("vanished")
@pytest.mark.parametrize("fault", [signal.SIGSTOP, signal.SIGKILL], ids=lambda number: number.name)
def test_the_process_that_starts_decoders_is_replaced(server, sample, measured, note, fault):
    """It is stopped or killed while nothing runs, and four recordings arrive at once; each is answered, or is told to
    come again and answered then."""
    parent, began_s = fork_server(server.process.pid), time.monotonic()
    os.kill(parent, fault)
    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(lambda _: _answered(server, sample), range(4)))
    measured("again_s", time.monotonic() - began_s)
    assert fork_server(server.process.pid) != parent
    note(f"{fault.name}: answered after {time.monotonic() - began_s:.1f} s, {sum(seen)} told to come again")


def _answered(server, sample):
    """How many attempts were refused before one was answered; a refusal has to be one that clients repeat."""
    give_up_s, refused = time.monotonic() + 60, 0
    while (answer := server.transcribe(sample[0])).status_code != 200:
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "decoder_unavailable")
        assert int(answer.headers["retry-after"]) >= 1
        assert time.monotonic() < give_up_s
        refused += 1
    assert answer.json()["text"] == sample[1]
    return refused
