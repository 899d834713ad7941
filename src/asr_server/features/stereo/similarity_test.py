"""The relation of the channels of a recording, on conversations of real people."""

from functools import cache

import numpy as np
import pytest

from asr_server.core.audio import SAMPLE_RATE
from asr_server.features.stereo.similarity import MOST_S, ChannelComparison, ChannelVoice
from E2Etest.channels import conversation, late, noisy, people, through_telephone, with_crosstalk
from E2Etest.drive.recordings import real_clips, waveform


def _findings(track):
    """Return the findings, and how many seconds were needed."""
    comparison, block = ChannelComparison(len(track)), 2 * SAMPLE_RATE
    for at in range(0, track.shape[1], block):
        if comparison.push(track[:, at : at + block].astype(np.float32)):
            return comparison.findings(), at / SAMPLE_RATE
    return comparison.findings(), track.shape[1] / SAMPLE_RATE


@cache
def _call(pause_s=0.4, noise_db=-65.0):
    return conversation(people("librivox", "phone"), pause_s=pause_s, noise_db=noise_db)


@cache
def _mono():
    return _call().sum(axis=0)


def _both():
    """Return two people who speak at the same time all the time."""
    return np.stack([np.resize(waveform(clip.path), 20 * SAMPLE_RATE) for clip in real_clips("jfk", "librivox_0870")])


@pytest.mark.parametrize(
    "track",
    [
        lambda: _call(noise_db=-45.0),
        lambda: np.float32(2.0**31) * _call(),  # float files may exceed full scale by any factor
        pytest.param(lambda: np.stack([through_telephone(one) for one in _call()]), marks=pytest.mark.nightly),
        lambda: np.stack([_call()[0], 0.1 * _call()[1]]),
        lambda: with_crosstalk(_call(pause_s=-1.0), -15),
        lambda: with_crosstalk(_call(), -20, delay_ms=40),
        lambda: noisy(with_crosstalk(_call() * [[1.0], [0.3]], -20), -70),
        lambda: conversation(people("digits_george_0", "digits_jackson_0")),  # one turn each
    ],
)
def test_people_on_channels_of_their_own(track):
    """The people are found whatever the line is like: noise, gains, overlaps, crosstalk."""
    assert _findings(track())[0].voices == (ChannelVoice(0, 0), ChannelVoice(1, 1))


@pytest.mark.parametrize(
    "copy",
    [
        lambda mono: noisy(0.1 * mono, -65),
        lambda mono: -late(mono, 50),
        lambda mono: noisy(0.3 * late(mono, 30), -50),
        pytest.param(lambda mono: late(through_telephone(mono), 35), marks=pytest.mark.nightly),
        lambda mono: np.tanh(6 * mono),
    ],
)
def test_copies_of_one_sound_are_one(copy):
    """Fainter, inverted, late, noisy or compressed. The channels may be in either order."""
    for track in (np.stack([_mono(), copy(_mono())]), np.stack([copy(_mono()), _mono()])):
        assert len(_findings(track)[0].voices) == 1


def test_of_copies_the_clearest_is_taken():
    """The one with less noise, under the name of the first."""
    (voice,) = _findings(np.stack([noisy(_mono(), -40), _mono()]))[0].voices
    assert voice == ChannelVoice(0, 1)


@pytest.mark.parametrize("silence", [0.0, 0.005])
@pytest.mark.parametrize("noise_db", [-200.0, -60.0])
def test_a_channel_without_speech_is_nobody(silence, noise_db):
    """Neither silence nor noise nor the faint crosstalk of the only voice is a second person, or a copy."""
    mono = _mono()
    findings, needed_s = _findings(np.stack([mono, noisy(silence * mono, noise_db)]))
    assert len(findings.voices) == 2
    assert needed_s == pytest.approx(len(mono) / SAMPLE_RATE, abs=2)  # somebody might still speak


def test_more_than_two_channels():
    assert len(_findings(conversation(people("librivox", "phone", "digits_george")))[0].voices) == 3
    copied = _findings(np.stack([*_call(), -0.5 * _call()[0]]))[0]
    assert copied.voices == (ChannelVoice(0, 0), ChannelVoice(1, 1))


def test_crosstalk_is_measured():
    found = _findings(with_crosstalk(_call(noise_db=-75), -20))[0].crosstalk_db
    assert (found[0, 1], found[1, 0]) == (pytest.approx(-20, abs=1), pytest.approx(-20, abs=1))
    for track in (_call(noise_db=-45.0), _both()):
        assert np.isneginf(_findings(track)[0].crosstalk_db).all()


def test_speech_is_counted_once():
    """Speech at the same time counts for both, crosstalk for neither."""
    turns, crosstalk = (_findings(track)[0].speech_share for track in (_call(), with_crosstalk(_call(), -20)))
    assert crosstalk == pytest.approx(turns, abs=0.1)
    assert turns < 1
    assert _findings(_both())[0].speech_share > 1.1


def test_it_is_sure_after_a_few_turns_and_bounded_without():
    """A long call is not read to its end. One in which a channel is silent is, up to a limit."""
    assert _findings(np.tile(_call(), 4))[1] < 40
    assert _findings(np.stack([np.tile(_mono(), 4)] * 2))[1] < 90
    comparison, second = ChannelComparison(2), np.zeros((2, SAMPLE_RATE), np.float32)
    pushed = sum(not comparison.push(second) for _ in range(2 * round(MOST_S)))
    assert pushed == pytest.approx(MOST_S, abs=2)


@pytest.mark.parametrize("samples", [0, 8_000])
def test_too_little_audio_is_nobody(samples):
    assert _findings(np.zeros((2, samples), np.float32))[0].voices == (ChannelVoice(0, 0), ChannelVoice(1, 1))
