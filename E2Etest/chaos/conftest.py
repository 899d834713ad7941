"""A server with the model loaded, for those who need nothing else."""

import pytest

from E2Etest.process import ready


@pytest.fixture(scope="session")
def loaded(tmp_path_factory):
    """It keeps the model, and a session as long as its connection; one address may have 256 sessions."""
    log = tmp_path_factory.mktemp("chaos") / "log"
    with ready(log, WS_RESUME_S="0", MAX_LIVE_SESSIONS="512") as server:
        yield server
