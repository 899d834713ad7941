"""The limits of one server over several processes, each of which has a connection of its own to the same database."""

import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from asr_server.core.errors import Overloaded
from asr_server.features.front_ends.ledger import ENGINE, FRONT_END, JOBS, Ledger
from asr_server.schedule.admission import Admission
from asr_server.schedule.capacity import EngineWork, StreamCapacity, StreamRules
from asr_server.schedule.quota import Quota


@pytest.fixture
def ledgers(tmp_path):
    """The connections of two front ends."""
    first = Ledger.make(tmp_path / "ledger.db", 1)
    both = first, Ledger(tmp_path / "ledger.db", 2)
    for ledger in both:
        ledger.add(ledger.number, FRONT_END)
    yield both
    for ledger in both:
        ledger.close()


def _quotas(ledgers, *limits, **named):
    quotas = [Quota(*limits, **named) for _ in ledgers]
    for quota, ledger in zip(quotas, ledgers, strict=True):
        quota.siblings = ledger
    return quotas


def test_a_callers_requests_count_at_all_processes(ledgers):
    """Two at once: a third is refused wherever it comes, and another caller's is not. One that has ended makes room."""
    one, two = _quotas(ledgers, 2, 0)
    with two.taken("me"):
        with one.taken("me"):
            for quota in (one, two):
                with pytest.raises(Overloaded), quota.taken("me"):
                    pass
                with quota.taken("another"):
                    pass
        with two.taken("me"):
            pass


def test_the_requests_of_a_minute_count_at_all_processes(ledgers):
    """The token bucket is one: what one process takes is missing at the other, in either direction."""
    one, two = _quotas(ledgers, 0, 4)
    for quota in (one, one, two, one):
        with quota.taken("me"):
            pass
    for quota in (one, two):
        with pytest.raises(Overloaded) as refused, quota.taken("me"):
            pass
        assert 0 < refused.value.retry_after_s <= 15


def test_live_sessions_count_at_all_processes(ledgers):
    """One caller gets another only while more are free than it has, counted over both."""
    one, two = _quotas(ledgers, 0, 0, max_live=4)
    with one.taken("me", live=True), two.taken("me", live=True):
        for quota in (one, two):
            with pytest.raises(Overloaded), quota.taken("me", live=True):
                pass
        with two.taken("another", live=True):
            pass


def test_a_session_that_is_evicted_makes_room_at_all_processes(ledgers):
    """The caller's own session waits without a connection and gives way, in the middle of the decision."""
    one, two = _quotas(ledgers, 1, 0)
    with one.taken("me", live=True) as place:
        keeping = place.kept("session", lambda: keeping.__exit__(None, None, None))
        keeping.__enter__()
        assert ledgers[1].keeper("session") == (0, "")  # nobody can reach the process yet
        ledgers[0].found(1, "there")
        assert ledgers[1].keeper("session") == (1, "there")
        assert ledgers[0].keeper("session") == (0, "")
    with pytest.raises(Overloaded), two.taken("me"):
        pass
    with one.taken("me"):
        assert ledgers[1].keeper("session") == (0, "")
    with two.taken("me"):
        pass


def _admissions(ledgers, limit_s, **options):
    found = [Admission(limit_s, **options) for _ in ledgers]
    for admission, ledger in zip(found, ledgers, strict=True):
        admission.siblings = ledger
    return found


def test_accepted_audio_counts_at_all_processes(ledgers):
    """The bound is on all together: a recording that would exceed it is refused at either process."""
    one, two = _admissions(ledgers, 100.0)
    with one.hold() as ticket:
        one.measure(ticket, 95.0)
        assert two.held_s == 95.0
        assert two.full
        for admission in (one, two):
            with pytest.raises(Overloaded), admission.hold():
                pass
        one.progress(ticket, 60.0)
        one.tell()
        with two.hold():
            assert one.held_s == 45.0
    assert (one.held_s, two.held_s) == (0.0, 0.0)


def test_the_speed_is_that_of_all_processes(ledgers):
    """Each has had half of the audio in the time that the engine had both: the speed is the sum of both."""
    engine_s = 0.0
    one, two = _admissions(ledgers, 10_000.0, time_limit_s=100.0, engine_s=lambda: engine_s, first_guess_speed=10.0)
    with one.hold() as first, two.hold() as second:
        for admission, ticket in ((one, first), (two, second)):
            admission.measure(ticket, 90.0)
        for _ in range(60):
            engine_s += 1.0
            for admission, ticket in ((one, first), (two, second)):
                admission.progress(ticket, ticket.done_s + 20.0)
                admission.tell()
    with one.hold() as ticket:
        one.measure(ticket, 3_500.0)  # 40 s of audio in a second, so almost as much in 100 s
    with one.hold() as ticket, two.hold() as other:  # an empty server accepts any
        two.measure(other, 10.0)
        with pytest.raises(Overloaded):
            one.measure(ticket, 4_500.0)


def test_streams_count_at_all_processes(ledgers):
    """What is free at one process is less by the sessions of the other, and no less once they are over."""
    capacities = [StreamCapacity(EngineWork(), StreamRules(max_sessions=5, first_guess_speed=100.0)) for _ in ledgers]
    one, two = _admissions(ledgers, 10_000.0)
    one._streams, two._streams = capacities
    with one.hold_live(), one.hold_live():
        assert two.capacity().free_streams == 3
    assert two.capacity().free_streams == 5


def test_a_process_that_ends_takes_its_part_with_it(ledgers):
    """Its places, sessions and audio are free, and what it has answered still counts."""
    one, two = _quotas(ledgers, 1, 0)
    first, second = _admissions(ledgers, 100.0)
    with one.taken("me") as place, place.kept("session", lambda: None), first.hold() as ticket:
        first.measure(ticket, 90.0)
        first.progress(ticket, 30.0)
        first.tell()
        ledgers[0].tell_metrics("counts 1\n")
        assert ledgers[1].remove(1) == "counts 1\n"
        with two.taken("me"):
            pass
        assert second.held_s == 0.0
        assert ledgers[1].work().done_s == 30.0
        assert ledgers[1].keeper("session") == (0, "")
        assert ledgers[1].remove(1) == ""


_KILLED = """
import sys, time, pathlib
from asr_server.features.front_ends.ledger import Ledger
from asr_server.schedule.siblings import SiblingsUse
ledger = Ledger(pathlib.Path(sys.argv[1]), 1)
with ledger.exclusive():
    ledger.note_use("me", SiblingsUse(requests=7))
    print("holds", flush=True)
    time.sleep(60)
"""


def test_a_process_that_is_about_to_end_gets_no_session_back(ledgers):
    """Its sessions are not found any more, so that their clients go on at another process."""
    one, two = ledgers
    one.found(1, "there")
    one.note_session("session", kept=True)
    one.leave()
    assert two.keeper("session") == (0, "")


def test_a_process_that_is_killed_in_a_change_keeps_nobody_waiting(ledgers, tmp_path):
    """The lock is free at once, and the half of a change is taken back."""
    command = [sys.executable, "-c", _KILLED, str(tmp_path / "ledger.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "holds\n"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        with ledgers[1].exclusive():
            assert ledgers[1].use("me").requests == 0


def test_a_change_that_fails_is_over(ledgers):
    """The next one is possible, at both processes."""
    with pytest.raises(Overloaded), ledgers[0].exclusive():
        raise Overloaded("No.")
    for ledger in ledgers:
        with ledger.exclusive():
            pass


def test_processes_are_found_by_what_they_do(ledgers):
    """The newest process that can be reached is found; where none can, the reason is."""
    one, two = ledgers
    assert two.reached(ENGINE) == (0, "", "")
    one.add(3, ENGINE)
    assert two.reached(ENGINE) == (3, "", "")
    one.unreachable(3, "it does not stay up")
    assert two.reached(ENGINE) == (3, "", "it does not stay up")
    one.add(4, ENGINE)
    one.found(4, "/there")
    assert two.reached(ENGINE) == (4, "/there", "")
    assert two.reached(JOBS) == (0, "", "")


def test_a_process_tells_that_it_moves(ledgers):
    """One that never told counts as moving: it starts."""
    one, two = ledgers
    assert two.beat_age_s(1) == 0.0
    one.tell({"sessions": 3})
    time.sleep(0.01)
    assert two.beat_age_s(1) >= 0.01
    assert two.told() == [{"sessions": 3}]


def test_full_buckets_are_forgotten(ledgers, tmp_path):
    """There is one for each caller of the last minute, and no more."""
    one, _ = _quotas(ledgers, 0, 60_000)
    for number in range(50):
        with one.taken(f"caller {number}"):
            pass
    time.sleep(0.1)
    ledgers[1].forget_full_buckets()
    with sqlite3.connect(tmp_path / "ledger.db") as database:
        assert database.execute("select count(*) from bucket").fetchone() == (0,)
        assert database.execute("select count(*) from caller").fetchone() == (0,)
