"""The runner of other programs judges rightly, and the pages of the docs say what it ran."""

import pytest

from asr_server.features.moonshine import package
from E2Etest.drive import recordings
from E2Etest.drive.process import ready
from E2Etest.drive.session import pcm_of
from tools.clients import page, running
from tools.clients.catalogue import CLIENTS

WORDS = "Ask not what."
SRT = "1\n00:00:00,100 --> 00:00:01,000\nAsk\n\n2\n00:00:01,000 --> 00:00:02,000\nnot what"
VTT = "WEBVTT\n\n00:00:00.100 --> 00:00:01.000\nAsk\n\n00:00:01.000 --> 00:00:02.000\nnot what"


def _verdict(printed):
    return {trial.what: trial.right for trial in running.judged(printed, WORDS)}


def test_what_is_right():
    """The words, whatever their case and punctuation, also as cues or without a heading; cues that are all counted."""
    printed = f"# file, json\nask not what\n# file, srt\n{SRT}\n\n# file, vtt\n{VTT}\n# reads srt\n2 of 2 cues\n"
    assert _verdict(printed) == {"file, json": True, "file, srt": True, "file, vtt": True, "reads srt": True}
    assert _verdict("Ask not what.\n") == {"file": True}


@pytest.mark.parametrize(
    "printed",
    [
        "# file\nAsk now what.",
        "# file\n",
        "# file, srt\n" + SRT.replace("2\n00:00:01", "3\n00:00:01"),
        "# file, srt\n" + SRT.replace("00:00:01,000 --> 00:00:02", "00:00:00,900 --> 00:00:02"),
        "# file, srt\n" + SRT.replace(",", "."),
        "# file, srt\nAsk not what.",
        "# file, vtt\n" + VTT.replace("WEBVTT", "1"),
        "# file, vtt\n" + VTT.replace("not what", "now what"),
        "# reads vtt\n3 of 4 cues",
        "# reads vtt\n0 of 0 cues",
    ],
)
def test_what_is_wrong(printed):
    """Another word or none, cues out of order or in another form, cues that are not read."""
    assert list(_verdict(printed).values()) == [False]


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
