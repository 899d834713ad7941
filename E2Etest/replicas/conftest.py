"""Servers with the scripted engine, which knows the words of the bundled recording."""

import pytest

from E2Etest.drive import recordings
from E2Etest.drive.process import fake_model


@pytest.fixture
def scripted(tmp_path):
    """The settings: the words of the bundled recording in every span."""
    folder = tmp_path / "script"
    folder.mkdir()
    return {
        "PRELOAD": "true",
        "IDLE_TIMEOUT": "0",
        "API_KEYS": "sk-replicas",
        **fake_model(folder, text=recordings.sample()[1], language="English"),
    }
