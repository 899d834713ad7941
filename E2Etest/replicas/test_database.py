"""Two servers behind one address that share their jobs in a database, and the database is killed."""

import pytest

from E2Etest.drive import recordings
from E2Etest.drive.process import until
from E2Etest.postgres import postgres
from E2Etest.replicas.load import Callers
from E2Etest.replicas.rig import balanced


@pytest.mark.guarantee("jobs-database")
def test_a_database_that_is_killed_under_load_loses_no_job(tmp_path, scripted, note):
    """SIGKILL under callers of every kind, and started again: jobs are refused with their error meanwhile, all else is
    answered, and every job that was accepted is done, and once."""
    with postgres() as database, balanced(tmp_path, 2, JOBS_DATABASE_URL=database.url, **scripted) as replicas:
        with Callers(replicas, recordings.sample()[1], with_jobs=True) as callers:
            callers.wait_for_each_kind(1)
            database.kill()
            others = {kind: count for kind, count in callers.tally.answered.items() if kind != "job"}
            audio = {"file": ("a.wav", recordings.sample()[0])}
            refused = replicas.client.post("/v1/jobs", files=audio, data={"model": "whisper-1"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "jobs_unavailable")
            until(lambda: all(callers.tally.answered[kind] >= count + 2 for kind, count in others.items()))
            database.start()
            callers.wait_for_each_kind(2)
        assert callers.tally.wrong == []
        broken = callers.tally.broken
        assert [(kind, text) for kind, text in broken if kind != "job" or "jobs_unavailable" not in text] == []
        ends = [replicas.log().count(f" job id={job} outcome=") for job in callers.jobs]
    assert set(ends) == {1}
    note(f"{len(ends)} jobs accepted and each done once, beside {sum(callers.tally.answered.values())} other requests")
