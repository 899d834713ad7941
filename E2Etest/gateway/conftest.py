"""Gateways whose workers run the fake engine: a gateway knows no model."""

import numpy as np
import pytest

from E2Etest import recordings
from E2Etest.process import fake_model, running


@pytest.fixture(scope="session")
def fake(tmp_path_factory):
    """The settings for the fake engine: recordings have the words of the bundled one in every span, and the words of
    live sessions follow from how long one speaks."""
    return fake_model(tmp_path_factory.mktemp("script"), live=False, text=recordings.sample()[1])


@pytest.fixture(scope="session")
def gateway(tmp_path_factory, fake):
    """A running gateway; its worker starts with the first request, and takes one span after the other."""
    log = tmp_path_factory.mktemp("gateway") / "log"
    limits = {"MAX_UPLOAD_MB": "4", "MAX_AUDIO_S": "120", "IDLE_TIMEOUT": "600", "MAX_BATCH": "1"}
    with running(log, GATEWAY_MODE="true", **limits, **fake) as server:
        yield server


@pytest.fixture(scope="session")
def alone(tmp_path_factory, fake):
    """A server without a gateway, with the same limits."""
    log = tmp_path_factory.mktemp("alone") / "log"
    limits = {"MAX_UPLOAD_MB": "4", "MAX_AUDIO_S": "120", "IDLE_TIMEOUT": "600", "MAX_BATCH": "1"}
    with running(log, **limits, **fake) as server:
        yield server


@pytest.fixture(scope="session")
def long(speech):
    """The bundled recording again and again, with pauses: almost two minutes, so several spans."""
    return recordings.wav(np.tile(speech, 23))
