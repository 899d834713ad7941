"""The pages of the docs say which other programs ran, and one of them runs here."""

import pytest

from asr_server.features.moonshine import package
from E2Etest.drive import recordings
from E2Etest.drive.process import ready
from E2Etest.drive.session import pcm_of
from tools.clients import page, running
from tools.clients.catalogue import CLIENTS


def test_the_page_names_the_versions_that_ran():
    """A client whose pin changes must run again."""
    rows = page.read()
    assert set(rows) <= {client.name for client in CLIENTS}
    pinned = {client.name: client.pinned for client in CLIENTS if client.pinned}
    assert {name: rows[name].version for name in pinned} == pinned


@pytest.mark.nightly
@pytest.mark.integration
def test_a_client_runs_against_the_server(tmp_path):
    """SpeechRecognition, which is small, is installed in its version and gets the words."""
    (client,) = (client for client in CLIENTS if client.name == "SpeechRecognition")
    (clip,) = recordings.real_clips("jfk")
    recording = tmp_path / "recording.wav"
    recording.write_bytes(recordings.wav(pcm_of(clip.path)))
    with ready(tmp_path / "log", MODEL_ID=package.MODEL_ID) as server:
        (trial,) = running.trials(client, recording, server.base, clip.text)
    assert trial.right, trial.printed
