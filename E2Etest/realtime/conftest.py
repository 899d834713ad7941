"""The server for OpenAI's clients of realtime sessions, and what it hears offline."""

import pytest

from E2Etest.drive import recordings


@pytest.fixture(scope="session")
def realtime_server(server):
    """A server process with the demonstration model."""
    return server


@pytest.fixture(scope="session")
def said(realtime_server):
    """The text that the model recognises offline in the bundled recording."""
    text = realtime_server.transcribe(recordings.sample()[0]).json()["text"]
    assert text
    return text
