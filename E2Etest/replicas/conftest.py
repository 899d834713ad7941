"""Servers with the scripted engine, which knows the words of the bundled recording."""

import pytest

from E2Etest.drive import recordings
from E2Etest.drive.process import fake_model


@pytest.fixture
def scripted(tmp_path):
    """The settings: the words of the bundled recording in every span, and no model that translates is asked."""
    folder = tmp_path / "script"
    folder.mkdir()
    return {
        "PRELOAD": "true",
        "IDLE_TIMEOUT": "0",
        "API_KEYS": "sk-replicas",
        "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
        "TRANSLATE_MODEL": "nobody",
        **fake_model(folder, text=recordings.sample()[1], language="English"),
    }
