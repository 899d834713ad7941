"""Speed changes the duration and leaves the pitch."""

import numpy as np
import pytest

from asr_server.audio.encoding.conftest import tone
from asr_server.audio.encoding.tempo import Tempo
from asr_server.core.audio import SPEECH_RATE


def at_speed(speed, sound):
    tempo = Tempo(speed)
    return np.concatenate([*tempo.push(sound), *tempo.finish()])


def pitch_hz(sound):
    """Return the pitch by autocorrelation, between 100 and 400 Hz."""
    spectrum = np.fft.rfft(sound, 2 * len(sound))
    similarity = np.fft.irfft(np.abs(spectrum) ** 2)[: len(sound)]
    shortest, longest = SPEECH_RATE // 400, SPEECH_RATE // 100
    return SPEECH_RATE / (shortest + int(similarity[shortest:longest].argmax()))


@pytest.mark.parametrize("speed", [0.25, 0.4, 0.5, 0.8, 1.25, 2.0, 3.0, 4.0])
def test_the_duration_changes_and_the_pitch_does_not(speed):
    """The duration is right to the sample, the pitch within 2 %. The level stays as well."""
    sound = tone(200, 3)
    found = at_speed(speed, sound)
    assert len(found) == round(len(sound) / speed)
    for part in np.array_split(found, 3):
        assert pitch_hz(part) == pytest.approx(200, rel=0.02)
        assert np.std(part) == pytest.approx(np.std(sound), rel=0.1)


@pytest.mark.parametrize("speed", [0.25, 4.0])
@pytest.mark.parametrize("length", [0, 1, 100, 5_000])
def test_little_sound(speed, length):
    """The result is as long as it should be; nothing of it is lost."""
    assert len(at_speed(speed, tone(200, 1)[:length])) == round(length / speed)


@pytest.mark.parametrize("speed", [0.3, 0.7])
def test_pieces_change_no_sample(speed):
    """The filter itself rounds its position at the end of each."""
    sound, tempo = tone(200, 3), Tempo(speed)
    found = [block for begin in range(0, len(sound), 100) for block in tempo.push(sound[begin : begin + 100])]
    assert np.array_equal(np.concatenate([*found, *tempo.finish()]), at_speed(speed, sound))


def test_words_stay_where_they_are():
    """A sound of the sentence begins and ends when it should, to 60 ms."""
    sound = np.concatenate([np.zeros(12_000, np.float32), tone(200, 0.5)] * 4)
    for speed in (0.5, 1.5, 3.0):
        loud = np.abs(at_speed(speed, sound)) > 0.05
        begins = np.flatnonzero(loud)[np.flatnonzero(np.diff(np.flatnonzero(loud), prepend=-9_999) > 2_000)]
        assert begins == pytest.approx(np.array([12_000, 36_000, 60_000, 84_000]) / speed, abs=1_440)
