"""A server in gateway mode with the limits of the shared one."""

import numpy as np
import pytest

from E2Etest import recordings
from E2Etest.process import running


@pytest.fixture(scope="session")
def gateway(tmp_path_factory):
    """A running gateway; its worker starts with the first request, and takes one span after the other."""
    log = tmp_path_factory.mktemp("gateway") / "log"
    limits = {"MAX_UPLOAD_MB": "4", "MAX_AUDIO_S": "120", "IDLE_TIMEOUT": "600", "MAX_BATCH": "1"}
    with running(log, GATEWAY_MODE="true", **limits) as server:
        yield server


@pytest.fixture(scope="session")
def long(speech):
    """The bundled recording again and again, with pauses: almost two minutes, so several spans."""
    return recordings.wav(np.tile(speech, 23))
