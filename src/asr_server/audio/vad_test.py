"""Speech probability, by Silero VAD."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from asr_server import demo
from asr_server.audio.segmentation import SpeechProbability
from asr_server.core.audio import FRAME_SAMPLES
from E2Etest.drive.recordings import waveform

# Where the two phrases of fixtures/words.flac begin and end, in samples: known from cutting and pasting them.
PHRASES = ((16_000, 38_302), (57_502, 77_760))


@pytest.fixture(scope="module")
def words():
    """Silence, "Good morning everyone", 1.2 s, "Thank you for coming", silence: espeak-ng and faint noise."""
    return waveform(Path(__file__).with_name("fixtures") / "words.flac")


def _whole_frames(audio):
    return audio[: len(audio) // FRAME_SAMPLES * FRAME_SAMPLES]


def test_onsets_are_found(words):
    """Speech begins and ends within three frames (96 ms) of the truth, and the silence around it is not speech."""
    speech = np.flatnonzero(SpeechProbability().push(words) >= 0.5)
    first, second = np.split(speech, np.flatnonzero(np.diff(speech) > 20) + 1)
    found = np.array([[first[0], first[-1] + 1], [second[0], second[-1] + 1]])
    assert np.abs(found - np.array(PHRASES) / FRAME_SAMPLES).max() <= 3


def test_chunking_does_not_matter(words):
    """Frames fed one by one, or in odd lots, score as the whole clip does."""
    whole = SpeechProbability().push(words)
    padded = np.pad(words, (0, -len(words) % FRAME_SAMPLES))
    for lot in (1, 7, 64, 100):
        scorer = SpeechProbability()
        starts = range(0, len(padded), lot * FRAME_SAMPLES)
        parts = [scorer.push(padded[at : at + lot * FRAME_SAMPLES]) for at in starts]
        assert np.abs(np.concatenate(parts) - whole).max() < 1e-5


def test_quiet_speech_is_found_as_loud_speech_is():
    """A speaker who is 30 dB quieter loses at most every twentieth frame, also behind another at full level."""
    speech = waveform(demo.speech().recording)
    loud = SpeechProbability().push(speech) >= 0.5
    quiet = np.float32(10 ** (-30 / 20)) * speech
    pause = np.zeros(10 * FRAME_SAMPLES, np.float32)
    for before in (pause, np.concatenate((_whole_frames(speech), np.tile(pause, 20)))):
        found = SpeechProbability().push(np.concatenate((before, quiet))) >= 0.5
        found = found[len(before) // FRAME_SAMPLES :]
        assert np.count_nonzero(loud & ~found) <= 0.05 * np.count_nonzero(loud)


def test_streams_do_not_mix(words):
    """Streams whose frames are scored in the same calls, some more of them than others, share nothing."""
    whole = _whole_frames(words).reshape(-1, FRAME_SAMPLES)
    noise = np.random.default_rng(0).normal(0, 0.1, whole.shape).astype(np.float32)
    alone = SpeechProbability().push(whole.ravel())
    one, other = SpeechProbability(), SpeechProbability()
    found = []
    for at in range(0, len(whole), 5):
        frames = (one, whole[at : at + 5]), (other, noise[at : at + 1 + at % 7])
        found.append(SpeechProbability.push_together(frames if at % 2 else frames[::-1])[at % 2 - 1])
    assert np.abs(np.concatenate(found) - alone).max() < 1e-5


def test_the_runtime_reports_nothing_to_its_maker(tmp_path):
    """The runtime would keep reports below the home directory until it can send them."""
    code = "import numpy; from asr_server.audio import segmentation; "
    code += "segmentation.SpeechProbability().push(numpy.zeros(512, 'f4'))"
    environment = {"PYTHONPATH": ":".join(sys.path), "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, check=True, timeout=60)
    assert not list(tmp_path.iterdir())
