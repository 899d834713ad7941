"""Intervals on simulated errors, whose true rate is known."""

import numpy as np
import pytest

from asr_server.cli.evaluate.scoring import LEAST_UNITS, Draws

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
        found = Draws.of(_simulated(generator, speakers, each, speaker_spread=spread), names).interval(0, 1)
        inside += found[0] <= errors / words <= found[1]
    return inside / _SIMULATIONS


@pytest.mark.parametrize(("recordings", "least"), [(8, 0.85), (50, 0.91)])
def test_the_interval_of_independent_recordings_has_the_true_rate(recordings, least):
    """Nearly as often as it says; with few recordings somewhat less."""
    assert least <= _coverage(recordings, 1, spread=0, known=False) <= 0.98


def test_the_interval_over_speakers_has_the_true_rate_where_recordings_are_not_independent():
    """Drawn as if they were, two of five intervals would be wrong."""
    assert 0.90 <= _coverage(12, 20, spread=0.7, known=True) <= 0.98
    assert _coverage(12, 20, spread=0.7, known=False) < 0.7


def test_a_difference_is_paired():
    """Two systems that differ a little on every recording are told apart, however much the recordings differ; two that
    differ by chance are not, in 19 of 20 cases."""
    generator = np.random.default_rng(3)
    found = _simulated(generator, 100, 1)
    better = np.maximum(found[:, 0] - 1, 0)
    drawn = Draws.of(np.column_stack([found, better]), [""] * 100)
    low, high = drawn.interval(0, 1, 2)
    assert low > 0
    single_low, single_high = drawn.interval(0, 1)
    assert high - low < single_high - single_low
    wrong = 0
    for _ in range(_SIMULATIONS):
        words = generator.integers(5, 30, 60)
        rates = 1 / (1 + np.exp(-generator.normal(-2, 0.8, 60)))
        pair = [generator.binomial(words, rates) for _ in range(2)]
        low, high = Draws.of(np.column_stack([pair[0], words, pair[1]]), [""] * 60).interval(0, 1, 2)
        wrong += low > 0 or high < 0
    assert wrong / _SIMULATIONS <= 0.09


def test_too_little_has_no_interval():
    """Few recordings, no errors at all, or no words: a width of 0 would claim to be certain."""
    assert Draws.of([[1, 10]] * (LEAST_UNITS - 1), [""] * (LEAST_UNITS - 1)) is None
    assert Draws.of([[0, 10], [0, 20]] * 10, [""] * 20).interval(0, 1) is None
    assert Draws.of([[1, 0], [2, 0]] * 10, [""] * 20).interval(0, 1) is None


def test_speakers_are_drawn_where_all_are_known_and_enough():
    """One recording without a speaker could be of any of them."""
    names = [f"s{i}" for i in range(LEAST_UNITS)]
    assert Draws.of([[1, 10]] * 24, 3 * names).units == LEAST_UNITS
    assert Draws.of([[1, 10]] * 24, [*(3 * names)[:-1], ""]).units == 24
    assert Draws.of([[1, 10]] * 21, 3 * names[:-1]).units == 21


def test_two_runs_print_the_same():
    """Intervals are equal in two runs."""
    table, names = _simulated(np.random.default_rng(1), 30, 1), [""] * 30
    whole = Draws.of(table, names).interval(0, 1)
    assert Draws.of(table, names).interval(0, 1) == whole
