"""A server for realtime sessions, and what it hears offline."""

import pytest

from E2Etest import recordings
from E2Etest.process import ready


@pytest.fixture(scope="session")
def realtime_server(tmp_path_factory):
    """A running server whose model is loaded; utterances are cut after 6 s, so that turns of several are seen."""
    log = tmp_path_factory.mktemp("realtime") / "log"
    with ready(log, WS_UTTERANCE_MAX_S="6") as server:
        yield server


@pytest.fixture(scope="session")
def said(realtime_server):
    """What the model hears offline in the bundled recording."""
    text = realtime_server.transcribe(recordings.sample()[0]).json()["text"]
    assert text
    return text
