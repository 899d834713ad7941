"""Times in order from what a head says of each one alone: the median of every stamp, given that none lies before
the one in front of it. Pure numpy; knows no words.

The head of an aligner gives each stamp a distribution over time slots. Taking the likeliest slot of each may run
backwards, and then something has to be repaired by rule. Here the stamps are a chain instead, t(1) <= t(2) <= ..., each
link as likely as the head says and no order preferred among those that do not run backwards; the marginals of the chain
are found by the forward-backward recursion (Rabiner, Proc. IEEE 77(2), 1989). The median of a marginal is the time with
the least expected distance from the truth; medians of an ordered chain are in order themselves.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Certainty has limits: a stamp that is sure of a place its neighbours exclude is overruled, and nothing is impossible.
_LEAST = 1e-9


def medians(weights: NDArray[np.floating]) -> NDArray[np.float64]:
    """(n, slots) probabilities of each stamp alone -> (n,) medians in slots, never falling, fractions of a slot told.

    A stamp that is certain, at a place that its neighbours allow, keeps its slot exactly.
    """
    marginal = _marginals(np.log(np.maximum(weights.astype(np.float64), _LEAST)))
    reached = marginal.cumsum(axis=1)
    slot = (reached < 0.5).sum(axis=1)
    rows = np.arange(len(slot))
    inside = marginal[rows, slot]
    # A slot stands for the time half a slot to either side of it.
    return slot - 0.5 + (0.5 - (reached[rows, slot] - inside)) / inside


def _marginals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, slots) logarithms -> probabilities of each link of the chain. In logarithms, since the weight of a place that
    many neighbours exclude is no number any more."""
    before, behind = np.zeros_like(logs), np.zeros_like(logs)
    for n in range(1, len(logs)):
        before[n] = np.logaddexp.accumulate(before[n - 1] + logs[n - 1])
        behind[-1 - n] = np.logaddexp.accumulate((behind[-n] + logs[-n])[::-1])[::-1]
    marginal = before + logs + behind
    marginal = np.exp(marginal - marginal.max(axis=1, keepdims=True))
    scaled: NDArray[np.float64] = marginal / marginal.sum(axis=1, keepdims=True)
    return scaled
