"""A part of the cluster is killed while callers of every kind work and people speak."""

import functools
import os
import signal
import time

import httpx
import pytest

from E2Etest import recordings
from E2Etest.cluster import process
from E2Etest.contract.test_jobs import events, long_recording, submit
from E2Etest.replicas.load import calling
from E2Etest.replicas.test_live import Speaker, check

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

SPEAKERS = 2
_PATIENCE_S = 240.0


@pytest.mark.parametrize("part", ["controller", "proxy", "app"])
def test_a_part_is_killed_under_load(cluster, part, record_property):
    """SIGKILL: another takes its place. No answer looks complete that is not, every job is done once, and every live
    session goes on, each word once. Without the controller nothing breaks."""
    speakers = []
    try:
        with calling(cluster, recordings.sample()[1], with_jobs=True) as callers:
            callers.wait_for_each_kind(1)
            speakers = [Speaker(cluster) for _ in range(SPEAKERS)]
            _until(lambda: all(speaker.committed for speaker in speakers), cluster)
            before, killed_s = cluster.processes(part), time.monotonic()
            os.kill(before[0], signal.SIGKILL)
            _until(lambda: _answers(cluster.base), cluster)
            again_s = time.monotonic() - killed_s
            _until(lambda: len(after := cluster.processes(part)) == len(before) and after != before, cluster)
            callers.wait_for_each_kind(1)
            broken = len(callers.tally.broken)
            callers.wait_for_each_kind(1)
            assert callers.tally.broken[broken:] == []
    finally:
        for speaker in speakers:
            speaker.end()
    check(speakers)
    assert callers.tally.wrong == []
    assert broken == 0 or part != "controller"
    _until(lambda: all(cluster.log().count(f" job id={job} outcome=") for job in callers.jobs), cluster)
    assert all(cluster.log().count(f" job id={job} outcome=") == 1 for job in callers.jobs)
    record_property("again_s", again_s)
    record_property("broken", broken)


def test_a_cluster_that_lost_its_head_ends_and_the_next_one_does_its_jobs(
    tmp_path, fake_sample, sample, record_property
):
    """SIGKILL to Ray's control store, and to the process that starts Ray's workers: the command ends with 70 and leaves
    no process behind, as when it is killed itself. The next one does the jobs that were accepted."""
    state, accepted = str(tmp_path / "state"), None
    for program in ("/gcs_server", "/raylet", "command"):
        folder = tmp_path / program.strip("/")
        folder.mkdir()
        with process.running(folder / "log", STATE_DIR=state, **fake_sample) as cluster:
            if accepted is not None:
                assert events(cluster, accepted)[-1]["status"] == "succeeded"
                words = cluster.client.get(f"/v1/jobs/{accepted}/result").text.split()
                assert words == 20 * sample[1].split()
            accepted = submit(cluster, long_recording(20), response_format="text")["id"]
            with cluster.client.stream("GET", f"/v1/jobs/{accepted}/events") as answer:
                next(line for line in answer.iter_lines() if '"running"' in line)
            everything, killed_s = cluster.processes(), time.monotonic()
            victim = cluster.process.pid if program == "command" else cluster.processes(program)[0]
            os.kill(victim, signal.SIGKILL)
            code = cluster.process.wait(_PATIENCE_S)
            record_property("exit_s", time.monotonic() - killed_s)
            assert code == (-signal.SIGKILL if program == "command" else 70), cluster.log()
            _until(functools.partial(_none_run, everything), cluster)


def _none_run(pids):
    return not any(map(process.runs, pids))


def _answers(base):
    try:
        return httpx.get(f"{base}/readyz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def _until(condition, cluster):
    give_up_s = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_s, cluster.log()[-10_000:]
        time.sleep(0.1)
