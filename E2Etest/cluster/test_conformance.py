"""What clients see of a cluster is what they see of one server: the tests of one, pointed at the cluster's address."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1_200)]

ROOT = Path(__file__).parents[2]
FILES = [f"E2Etest/contract/test_{name}.py" for name in ("bad_input", "jobs", "live_socket", "page")]
_LOG = "reads the server's log"
# Tests of these that do not fit, with the reason.
NOT_HERE = {
    "test_after_all_that_it_still_hears": _LOG,
    "test_nothing_secret_is_logged": _LOG,
    "test_a_job_can_be_stopped_and_removed": "its recording is longer than this cluster takes",
}


def test_the_tests_of_one_server_pass(cluster):
    """In detail: bad input, jobs, the messages of live sessions, the page."""
    unlike = " and ".join(f"not {name}" for name in NOT_HERE)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:schemathesis", "-k", unlike, *FILES],
        cwd=ROOT,
        env={**os.environ, "E2E_BASE_URL": cluster.base, "E2E_DEMO_SERVER": "true"},
        capture_output=True,
        text=True,
        timeout=1_000,
    )
    assert done.returncode == 0, done.stdout + done.stderr
