"""Loudness compared with the standard's own figure and FFmpeg's meter; the gain, and that nothing clips."""

import itertools

import av
import numpy as np
import pytest

from asr_server.core.audio import SPEECH_RATE
from asr_server.features.speech_output.encoding.conftest import silence, tone
from asr_server.features.speech_output.encoding.loudness import LoudnessNormalizer, loudness_lufs
from asr_server.features.speech_output.encoding.sentences import SentenceFrame, SentenceJoiner


def normalized(sound, target_lufs):
    normalizer = LoudnessNormalizer(target_lufs)
    frames = SentenceJoiner(trim=False, pause_ms=0).push(sound, ends_sentence=True)
    blocks = itertools.chain.from_iterable(map(normalizer.push, frames))
    return np.concatenate([*blocks, *normalizer.finish()])


def ffmpeg_lufs(sound):
    """The momentary loudness of the last 400 ms."""
    graph = av.filter.Graph()
    source = graph.add_abuffer(sample_rate=SPEECH_RATE, format="flt", layout="mono", time_base="1/24000")
    graph.link_nodes(source, graph.add("ebur128", "metadata=1"), graph.add("abuffersink")).configure()
    frame = av.AudioFrame.from_ndarray(sound[np.newaxis], format="flt", layout="mono")
    frame.sample_rate, frame.pts = SPEECH_RATE, 0
    graph.push(frame)
    graph.push(None)
    found = None
    while True:
        try:
            found = float(graph.pull().metadata["lavfi.r128.M"])
        except EOFError:
            return found


def test_the_sine_of_the_standard():
    """A full-scale sine of 997 Hz in one channel has -3.01 LUFS (ITU-R BS.1770-5, annex 1)."""
    times = np.arange(24_000) / SPEECH_RATE
    assert loudness_lufs(np.sin(2 * np.pi * 997 * times).astype(np.float32)) == pytest.approx(-3.01, abs=0.02)


@pytest.mark.parametrize("hertz", [60, 200, 1_500, 6_000])
def test_ffmpeg_measures_the_same(hertz):
    sound = tone(hertz, 1, 0.1)
    assert loudness_lufs(sound[-9_600:]) == pytest.approx(ffmpeg_lufs(sound), abs=0.15)


def test_silence_has_no_loudness():
    assert loudness_lufs(silence(0.4)) == -np.inf


@pytest.mark.parametrize("level", [0.03, 0.1, 0.6])
def test_speech_gets_the_loudness_that_is_asked_for(level):
    """One gain does it: the sound is the same but for its level, as is the silence before it."""
    sound = np.concatenate([silence(0.5), tone(200, 2, level)])
    found = normalized(sound, -20.0)
    assert loudness_lufs(found[12_000:]) == pytest.approx(-20.0, abs=0.2)
    assert np.allclose(found, sound * (found[20_000] / sound[20_000]), atol=1e-5)


def test_the_gain_has_a_bound():
    """Noise of almost nothing is not made as loud as speech."""
    sound = tone(200, 1, 0.002)
    assert np.allclose(normalized(sound, -10.0), sound * 10, atol=1e-6)


def test_a_request_shorter_than_the_measurement():
    sound = tone(200, 0.1)
    assert loudness_lufs(normalized(sound, -25.0)) == pytest.approx(-25.0, abs=0.2)
    assert len(normalized(silence(0.1), -25.0)) == 2_400


def test_a_louder_passage_does_not_clip():
    """The passage lowers the gain before its peak, without a step, and for the rest of the request."""
    sound = np.concatenate([tone(200, 1, 0.05), tone(200, 1, 0.5), tone(200, 1, 0.05)])
    found = normalized(sound, -14.0)
    assert np.abs(found).max() == pytest.approx(10 ** (-1 / 20), rel=0.01)
    gains = found[np.abs(sound) > 0.01] / sound[np.abs(sound) > 0.01]
    assert gains[0] > 2 * gains[-1]
    assert np.all(np.diff(gains) < 1e-4)
    assert np.abs(np.diff(gains)).max() < 0.05 * gains[0]


def test_pauses_in_the_first_speech_do_not_count():
    """A text whose first 400 ms of speech are parted by a pause gets the loudness of one without it."""
    sound = np.concatenate([tone(200, 0.2), silence(1.0), tone(200, 2)])
    assert loudness_lufs(normalized(sound, -20.0)[-24_000:]) == pytest.approx(-20.0, abs=0.2)


def test_speech_waits_two_seconds_at_most_for_its_gain():
    """A word and a long silence: not more than that is held back."""
    normalizer, sound = LoudnessNormalizer(-20.0), tone(200, 0.01)
    ready = [len(list(normalizer.push(SentenceFrame(sound, is_speech=number < 5)))) for number in range(300)]
    assert ready[:199] == [0] * 199
    assert sum(ready) >= 299
