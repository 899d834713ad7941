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
    """The people are two, each has the turns that are his, and their voices are not alike."""
    found = diarized(models, conversation)
    changes_ms = [
        next(turn.start_ms for turn in found.turns if turn.start_ms > 1000 * s - 300) for s in (4.5, 7.5, 13.4)
    ]
    assert [turn.speaker for turn in found.turns if turn.start_ms in changes_ms] == [1, 0, 1]
    assert changes_ms == pytest.approx([4_700, 7_700, 13_600], abs=150)
    assert len(found.voice_prints) == 2
    assert found.voice_prints[0] @ found.voice_prints[1] < 0.3


def test_loudness_changes_nothing(models, conversation):
    """Decoded samples may be as large as this."""
    sound = conversation[: 6 * SAMPLE_RATE]
    quiet, loud = diarized(models, sound), diarized(models, sound * 2.0**31)
    assert [(turn.speaker, turn.start_ms, turn.end_ms) for turn in quiet.turns] == [
        (turn.speaker, turn.start_ms, turn.end_ms) for turn in loud.turns
    ]


@pytest.mark.parametrize(
    "sound",
    [
        np.random.default_rng(0).normal(0, 0.1, 13 * SAMPLE_RATE),
        np.sin(np.arange(13 * SAMPLE_RATE) * 0.1),
        np.zeros(SAMPLE_RATE // 10),
    ],
)
def test_what_is_no_voice_is_nobody(models, sound):
    assert diarized(models, sound).turns == ()
