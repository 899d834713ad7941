"""Work behind an engine that is busy for too long: told in time, and never done."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from E2Etest.chaos.rig import at_rest, faulty
from E2Etest.exposition import moved, scrape

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.integration,
    pytest.mark.guarantee("deadlines"),
    pytest.mark.timeout(300),
]

LIMIT_S = 6.0
QUEUED = 8  # more would be refused at once: their lengths are not known yet, and they might not be done in time


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with faulty(tmp_path_factory.mktemp("deadlines") / "log", REQUEST_TIMEOUT=str(LIMIT_S)) as server:
        yield server


def test_what_is_late_is_reported_at_its_deadline_and_never_runs(server, sample, measured, note):
    """504 for what waits and for what runs while the engine is busy; when it is free it does none of it."""

    def late():
        began_s = time.monotonic()
        answer = server.transcribe(sample[0])
        return answer, time.monotonic() - began_s - LIMIT_S

    before = scrape(server)
    with ThreadPoolExecutor(QUEUED) as pool, server.hanging(sample[0]) as running:
        queued = [work.result() for work in [pool.submit(late) for _ in range(QUEUED)]]
        answers = [running.result(), *(answer for answer, _ in queued)]
    assert {(a.status_code, a.json()["error"]["code"]) for a in answers} == {(504, "deadline_exceeded")}
    server.wait_for(at_rest)
    assert server.transcribe(sample[0]).json()["text"] == sample[1]

    grew = moved(before, scrape(server))
    kind = {"priority": "interactive"}
    # On a busy machine some are still being decoded at their deadline, and never come so far.
    assert QUEUED / 2 < grew("asr_engine_jobs_total", **kind, end="late") <= QUEUED + 1
    # The one that hung, and the one that came when all were told.
    assert grew("asr_queue_wait_seconds_count", **kind) == 2
    assert grew("asr_engine_jobs_total", **kind, end="done") == 1
    measured("late_ms", 1000 * max(after_s for _, after_s in queued))
    note(f"{QUEUED} requests in the queue; none ran")
