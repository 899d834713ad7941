"""A server with the model loaded, for those who need nothing else; a recording that a decoder has to read."""

import pytest

from E2Etest.drive import recordings
from E2Etest.drive.process import ready


@pytest.fixture(scope="session")
def loaded(tmp_path_factory):
    """A server that keeps the model; one address may have 256 sessions."""
    log = tmp_path_factory.mktemp("chaos") / "log"
    with ready(log, MAX_LIVE_SESSIONS="512") as server:
        yield server


@pytest.fixture(scope="session")
def sample():
    """The bundled recording as FLAC, since a short WAV file needs no decoder, and its words."""
    return recordings.encoded("flac", "flac", rate=16_000), recordings.sample()[1]
