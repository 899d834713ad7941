"""`/metrics` through the gateway: it wakes nobody, keeps nobody awake, and counts on over sleeps and crashes."""

import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from asr_server.app import METRICS
from asr_server.ops.metric_spec import OF_GATEWAY, WorkerEnd
from E2Etest.exposition import scrape, total, value
from E2Etest.gateway.workers import kill_worker, wait_until_gone, worker_of
from E2Etest.process import running

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

KEY = "sk-of-the-scraper"
ROUTE = "/v1/audio/transcriptions"


@pytest.fixture(scope="module")
def sleepy(tmp_path_factory, fake_sample):
    """A gateway, with a key, whose worker sleeps soon."""
    log = tmp_path_factory.mktemp("sleepy") / "log"
    with running(log, GATEWAY_MODE="true", IDLE_TIMEOUT="1.5", API_KEYS=KEY, **fake_sample) as server:
        yield server


def _done(series):
    return value(series, "asr_http_requests_total", route=ROUTE, method="POST", status="2xx")


def _asleep(server):
    return server.wait_for(lambda health: health["worker"] == "stopped", timeout_s=60)


@pytest.mark.nightly
def test_a_scrape_wakes_nobody_and_keeps_nobody_awake(sleepy, sample):
    """Asked all the while: the worker ends when it is idle, and only a request starts the next; no memory stays."""
    _asleep(sleepy)
    before = scrape(sleepy)
    assert value(before, "asr_worker_running") == 0
    assert value(before, "asr_ready") == 1
    for _ in range(20):
        scrape(sleepy)
    assert worker_of(sleepy) is None
    assert sleepy.transcribe(sample[0]).json()["text"] == sample[1]
    pid, seen, give_up_s = worker_of(sleepy), [], time.monotonic() + 60
    while not seen or value(seen[-1], "asr_worker_running"):
        assert time.monotonic() < give_up_s
        seen.append(scrape(sleepy))
        time.sleep(0.05)
    assert len(seen) > 2
    assert value(seen[0], "asr_worker_running") == 1
    _asleep(sleepy)
    wait_until_gone(pid)
    after = scrape(sleepy)
    assert worker_of(sleepy) is None
    assert value(after, "asr_worker_starts_total") == value(before, "asr_worker_starts_total") + 1
    assert value(after, "asr_worker_ends_total", cause="stopped") == value(after, "asr_worker_starts_total")
    assert sleepy.resident_mb() < 80


@pytest.mark.nightly
def test_no_counter_falls_or_stands_twice_over_sleeps_and_crashes(sleepy, sample):
    """What the worker before had counted is in the sum; what it had counted before it slept, to the last request."""
    seen = [scrape(sleepy)]
    assert sleepy.transcribe(sample[0]).status_code == 200
    seen.append(scrape(sleepy))
    assert sleepy.transcribe(sample[0]).status_code == 200  # never scraped while the worker runs
    _asleep(sleepy)
    seen.append(scrape(sleepy))
    assert _done(seen[-1]) == _done(seen[0]) + 2
    assert sleepy.transcribe(sample[0]).status_code == 200
    seen.append(scrape(sleepy))
    wait_until_gone(kill_worker(sleepy))
    seen.append(scrape(sleepy))
    sleepy.wait_for(lambda health: health["worker"] == "running", timeout_s=60)
    seen.append(scrape(sleepy))
    assert value(seen[-1], "asr_worker_ends_total", cause="crashed") == 1
    assert _done(seen[-1]) == _done(seen[0]) + 3
    counters = {name for name, _ in seen[-1] if name.endswith(("_total", "_count", "_sum", "_bucket"))}
    assert {"asr_model_loads_total", "asr_engine_step_seconds_bucket", "asr_worker_starts_total"} <= counters
    for before, after in itertools.pairwise(seen):
        fallen = {key for key, found in before.items() if key[0] in counters and after.get(key, 0.0) < found}
        assert not fallen


@pytest.mark.nightly
def test_a_running_worker_tells_all_of_the_table_and_the_gateway_its_own(sleepy, sample):
    """Each with its kind and its meaning, once. Without a worker no gauge of it is made up; what it could take is still
    known."""
    assert sleepy.transcribe(sample[0]).status_code == 200
    text = sleepy.client.get("/metrics").text
    for meter in METRICS:
        assert text.count(f"# TYPE {meter.name} {meter.kind.value}\n") == 1
        assert text.count(f"# HELP {meter.name} {meter.meaning}\n") == 1
    _asleep(sleepy)
    series = scrape(sleepy)
    assert {dict(labels)["cause"] for name, labels in series if name == "asr_worker_ends_total"} == {*WorkerEnd}
    gauges = {meter.name for meter in METRICS if meter.kind == "gauge" and meter not in OF_GATEWAY}
    known = {"asr_ready", "asr_free_streams"}
    assert gauges & {name for name, _ in series} == known
    assert value(series, "asr_free_streams") >= 2


@pytest.mark.nightly
def test_a_worker_that_does_not_stay_up_shows(tmp_path, fake_sample):
    """Not ready, not running, and how often it was tried; the scrape itself always answers."""
    with running(tmp_path / "log", GATEWAY_MODE="true", **fake_sample) as server, ThreadPoolExecutor(1) as pool:
        work = pool.submit(server.client.get, "/openapi.json")
        while not work.done():
            if worker_of(server) is not None:
                kill_worker(server)
            time.sleep(0.005)
        series = scrape(server)
        assert value(series, "asr_ready") == value(series, "asr_worker_running") == 0
        assert value(series, "asr_worker_starts_total") == total(series, "asr_worker_ends_total", cause="crashed") == 5
