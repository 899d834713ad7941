"""Two servers behind Ray Serve's proxy are replaced, one after the other, while callers of every kind work."""

import pytest

from E2Etest.drive import recordings
from E2Etest.replicas.load import Callers

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1_800)]


def test_a_request_id_comes_back_once(cluster):
    """Ray Serve's proxy answers with it, and the server does not as well."""
    answer = cluster.client.get("/health", headers={"X-Request-ID": "caller-7"})
    assert answer.headers.get_list("x-request-id") == ["caller-7"]
    assert answer.json()["model_loaded"]  # before the replica gets its first request


def test_a_rolling_update_fails_no_request(cluster):
    """Requests are answered, and live sessions get their final and close code 1001 from a server that is replaced."""
    with Callers(cluster, recordings.sample()[1]) as callers:
        callers.wait_for_each_kind(1)
        cluster.replace_all()
        callers.wait_for_each_kind(1)
    # A replica without open sockets ends before it notices.
    assert "the replica is stopped" in cluster.log()
    assert callers.tally.wrong == []
    assert callers.tally.broken == []
