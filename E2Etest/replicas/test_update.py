"""Servers that are replaced one by one under load."""

import pytest

from E2Etest import recordings
from E2Etest.replicas.load import calling
from E2Etest.replicas.rig import balanced

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("gateway", ["false", "true"], ids=["plain", "gateway"])
def test_a_rolling_update_fails_no_request(tmp_path, scripted, gateway):
    """Two servers are replaced while callers of every kind work: each request gets its whole answer at the first
    attempt, each live session its words or, where its server goes, its final and 1001."""
    with balanced(tmp_path, 2, GATEWAY_MODE=gateway, **scripted) as replicas:
        with calling(replicas, recordings.sample()[1]) as callers:
            callers.wait_for_each_kind(2)
            assert replicas.roll() == [0, 0]
            callers.wait_for_each_kind(2)
        assert callers.tally.wrong == []
        assert callers.tally.broken == []
        assert all(replicas.answered()[place] for place in replicas.servers)
        assert "Traceback" not in replicas.log()
