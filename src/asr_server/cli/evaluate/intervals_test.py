"""Intervals on simulated errors, whose true rate is known."""

import numpy as np
import pytest

from asr_server.cli.evaluate.scoring import LEAST_UNITS, draws_speakers, interval

_SIMULATIONS = 200


def _simulated(generator, speakers, each, *, speaker_spread=0.0):
    """Word errors and words of recordings, whose rates differ between recordings and speakers."""
    rates = generator.normal(-1.8, speaker_spread, (speakers, 1)) + generator.normal(0, 0.8, (speakers, each))
    words = generator.integers(5, 30, (speakers, each))
    errors = generator.binomial(words, 1 / (1 + np.exp(-rates)))
    return np.stack([errors.ravel(), words.ravel()], axis=1)


def _coverage(speakers, each, *, spread, known):
    """The share of simulated data sets whose interval has the true rate."""
    generator = np.random.default_rng(7)
    errors, words = _simulated(generator, 20_000, each, speaker_spread=spread).sum(axis=0)
    names = [f"s{number}" for number in range(speakers) for _ in range(each)] if known else [""] * speakers * each
    inside = 0
    for _ in range(_SIMULATIONS):
        found = interval(*_simulated(generator, speakers, each, speaker_spread=spread).T, names)
        inside += found[0] <= errors / words <= found[1]
    return inside / _SIMULATIONS


@pytest.mark.nightly
@pytest.mark.parametrize(("recordings", "least"), [(8, 0.85), (50, 0.91)])
def test_the_interval_of_independent_recordings_has_the_true_rate(recordings, least):
    """Nearly as often as it says; with few recordings somewhat less."""
    assert least <= _coverage(recordings, 1, spread=0, known=False) <= 0.98


@pytest.mark.nightly
def test_the_interval_over_speakers_has_the_true_rate_where_recordings_are_not_independent():
    """Drawn as if they were, two of five intervals would be wrong."""
    assert 0.90 <= _coverage(12, 20, spread=0.7, known=True) <= 0.98
    assert _coverage(12, 20, spread=0.7, known=False) < 0.7


@pytest.mark.nightly
def test_a_difference_is_paired():
    """Two systems that differ a little on every recording are told apart, however much the recordings differ; two that
    differ by chance are not, in 19 of 20 cases."""
    generator = np.random.default_rng(3)
    found = _simulated(generator, 100, 1)
    better, words, names = np.maximum(found[:, 0] - 1, 0), found[:, 1], [""] * 100
    low, high = interval(found[:, 0] - better, words, names)
    assert low > 0
    single_low, single_high = interval(found[:, 0], words, names)
    assert high - low < single_high - single_low
    wrong = 0
    for _ in range(_SIMULATIONS):
        words = generator.integers(5, 30, 60)
        rates = 1 / (1 + np.exp(-generator.normal(-2, 0.8, 60)))
        pair = [generator.binomial(words, rates) for _ in range(2)]
        low, high = interval(pair[0] - pair[1], words, [""] * 60)
        wrong += low > 0 or high < 0
    assert wrong / _SIMULATIONS <= 0.09


def test_too_little_has_no_interval():
    """Few recordings, no errors at all, or no words: a width of 0 would claim to be certain."""
    assert interval(range(LEAST_UNITS - 1), [10] * (LEAST_UNITS - 1), [""] * (LEAST_UNITS - 1)) is None
    assert interval([0] * 20, [10, 20] * 10, [""] * 20) is None
    assert interval([1, 2] * 10, [0] * 20, [""] * 20) is None


def test_speakers_are_drawn_if_all_are_known_and_enough():
    """One recording without a speaker could be of any of them."""
    names = 3 * [f"s{i}" for i in range(LEAST_UNITS)]
    assert draws_speakers(names)
    assert not draws_speakers([*names[:-1], ""])
    assert not draws_speakers([name for name in names if name != "s0"])
    # Every speaker has as many errors as the others, so that drawing speakers says nothing.
    errors = [0] * LEAST_UNITS + [1] * LEAST_UNITS + [2] * LEAST_UNITS
    assert interval(errors, [10] * 24, names) is None
    assert interval(errors, [10] * 24, [""] * 24) is not None


def test_two_runs_print_the_same():
    """Intervals are equal in two runs."""
    table, names = _simulated(np.random.default_rng(1), 30, 1).T, [""] * 30
    assert interval(*table, names) == interval(*table, names)
