"""The chain of stamps against every sequence there is."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asr_server.engine.qwen_asr import aligner

WEIGHTS = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(0, 2**32)).map(
    lambda drawn: np.random.default_rng(drawn[2]).dirichlet(np.full(drawn[1], 0.5), drawn[0])
)


@settings(deadline=None)
@given(WEIGHTS)
def test_medians_are_those_of_all_sequences_in_order(weights):
    """Half of the weight lies on either side, fractions of a slot by straight lines."""
    weights = np.maximum(weights, 1e-6)
    rows, slots = weights.shape
    marginals = np.zeros_like(weights)
    for places in itertools.combinations_with_replacement(range(slots), rows):
        marginals[range(rows), places] += np.prod(weights[range(rows), places])
    edges = np.arange(slots + 1) - 0.5
    for told, marginal in zip(aligner.medians(weights), marginals / marginals.sum(axis=1, keepdims=True), strict=True):
        assert np.interp(told, edges, np.concatenate(([0], marginal.cumsum()))) == pytest.approx(0.5, abs=1e-6)


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(1, 400), st.integers(0, 2**32))
@example(1_200, 2_250, 0)
def test_medians_never_fall_and_stay_among_the_slots(rows, slots, seed):
    """No number holds the product of long chains of contradicting certainties, as of three minutes of nonsense."""
    certain = np.random.default_rng(seed).integers(0, slots, rows)
    told = aligner.medians(np.eye(slots, dtype=np.float32)[certain])
    assert (np.diff(told) >= -1e-9).all()
    assert told.min() >= -0.5
    assert told.max() <= slots - 0.5
