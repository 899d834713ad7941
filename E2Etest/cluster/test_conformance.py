"""What clients see of a cluster is what they see of one server: the tests of one, pointed at the cluster's address."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1_200)]

ROOT = Path(__file__).parents[2]
NAMES = (
    "bad_input",
    "basics",
    "channels",
    "formats",
    "jobs",
    "live_channels",
    "live_socket",
    "page",
    "realtime_session",
)
FILES = ["E2Etest/test_surfaces.py", "E2Etest/live/test_invariants.py"]
FILES += [f"E2Etest/contract/test_{name}.py" for name in (*NAMES, "realtime_turns", "subtitles")]
# Tests of these that need a server of their own, whose log they read, which has other limits, or which is new.
NEED_THEIR_OWN = (
    "test_after_all_that_it_still_hears",
    "test_nothing_secret_is_logged",
    "test_a_trace_is_sent_back_and_logged",
    "test_silence_is_an_empty_text_and_costs_no_engine_time",
    "test_a_job_can_be_stopped_and_removed",
    "test_fast_times_are_estimates_and_load_no_aligner",
)
# Tests of these that do not fit a cluster, with the reason.
NOT_HERE = {
    **dict.fromkeys(NEED_THEIR_OWN, "needs a server of its own"),
    "sent24-invalid_value-audio": "the proxy takes frames of at most 16 MiB",
    "test_request_ids_are_kept_or_made": "the proxy answers with the id that it was sent, whatever it is",
    "test_tokens_are_counted": "metrics are of one app",
}


def test_the_tests_of_one_server_pass(cluster):
    """Every surface, and in detail bad input, formats, jobs, live and realtime sessions, and the page."""
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
