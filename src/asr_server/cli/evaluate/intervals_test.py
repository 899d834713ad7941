"""Intervals on simulated errors, whose true rate is known."""

import numpy as np
import pytest

from asr_server.cli.evaluate.scoring import LEAST_UNITS, draws_speakers, interval


def _simulated(generator, speakers, each, spread):
    """Word errors and words of recordings, whose rates differ between recordings and speakers."""
    rates = generator.normal(-1.8, spread, (speakers, 1)) + generator.normal(0, 0.8, (speakers, each))
    words = generator.integers(5, 30, (speakers, each))
    return generator.binomial(words, 1 / (1 + np.exp(-rates))).ravel(), words.ravel()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("speakers", "each", "spread", "known", "least", "most"),
    [
        (8, 1, 0, False, 0.85, 0.98),
        (50, 1, 0, False, 0.91, 0.98),
        (12, 20, 0.7, True, 0.90, 0.98),
        # Drawn as if recordings of one speaker were independent, two of five intervals would be wrong.
        (12, 20, 0.7, False, 0, 0.7),
    ],
)
def test_an_interval_has_the_true_rate_nearly_as_often_as_it_says(speakers, each, spread, known, least, most):
    generator = np.random.default_rng(7)
    errors, words = _simulated(generator, 20_000, each, spread)
    names = [f"s{number}" if known else "" for number in range(speakers) for _ in range(each)]
    found = [interval(*_simulated(generator, speakers, each, spread), names) for _ in range(200)]
    assert least <= np.mean([low <= errors.sum() / words.sum() <= high for low, high in found]) <= most


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
