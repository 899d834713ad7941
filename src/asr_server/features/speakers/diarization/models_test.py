"""The models that come with the server, on recordings of real people."""

import numpy as np
import pytest

from asr_server.core.audio import SAMPLE_RATE
from asr_server.features.speakers.diarization import model_files
from asr_server.features.speakers.diarization.model_source import EMBEDDED
from asr_server.features.speakers.diarization.recording import RecordingDiarizer
from asr_server.features.speakers.diarization.turns import SpeakerCount


@pytest.fixture(scope="module")
def models():
    return model_files.load(EMBEDDED)


def diarized(models, sound):
    diarizer = RecordingDiarizer(models)
    with np.errstate(all="raise"):
        diarizer.push(sound.astype(np.float32))
        return diarizer.finish(SpeakerCount())


@pytest.mark.slow("finds the speakers of a conversation")
def test_two_people(models, conversation):
    found = diarized(models, conversation)
    changes = [next(turn for turn in found.turns if turn.start_ms > after_ms) for after_ms in (4_200, 7_200, 13_100)]
    assert [turn.speaker for turn in changes] == [1, 0, 1]
    assert [turn.start_ms for turn in changes] == pytest.approx([4_700, 7_700, 13_600], abs=150)
    assert len(found.voice_prints) == 2
    assert found.voice_prints[0] @ found.voice_prints[1] < 0.3


def test_loudness_changes_nothing(models, conversation):
    """Decoded samples may be as large as this."""
    sound = conversation[: 6 * SAMPLE_RATE]
    quiet, loud = diarized(models, sound), diarized(models, sound * 2.0**31)
    assert quiet.turns == loud.turns


def test_what_is_no_voice_is_nobody(models):
    noise, time = np.random.default_rng(0).normal(0, 0.1, 13 * SAMPLE_RATE), np.arange(13 * SAMPLE_RATE)
    for sound in (noise, np.sin(0.1 * time), np.zeros(1_600), np.zeros(0)):
        assert diarized(models, sound).turns == ()
