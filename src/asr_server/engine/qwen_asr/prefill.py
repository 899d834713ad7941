"""The number of tokens that one step may prefill, by the measured speed of this process. Pure.

Rows that decode, and live work that comes, wait while a step prefills, so a step may prefill for a time. How many
tokens that is has to be measured: a GPU prefills a hundred times as many as a small CPU.
"""

from __future__ import annotations

# How long rows that decode wait for others where no live work is near.
_PATIENCE_S = 3.0
# Most tokens of one step, for the memory that its activations take.
_MOST_TOKENS = 8192
# Fewer take hardly less time.
_LEAST_TOKENS = 32
# How much of the earlier measurements each new one leaves.
_KEPT = 0.8
# Below this a token counts as free.
_LEAST_TOKEN_S = 1e-6


class PrefillPolicy:
    """Learns how long prefills and decode steps take.

    A pass is taken to cost what a decode step costs, and the same for each token of a prompt. A token's time is that of
    the whole prefill: the encoder's part of it grows alike.
    """

    def __init__(self) -> None:
        self._step_s = 0.0
        # Sums over prefills, older ones counting less. Short prefills, which tell little, count little in a sum.
        self._tokens = self._seconds = 0.0

    def note_prefill(self, tokens: int, took_s: float) -> None:
        """Note that a pass has prefilled that many tokens."""
        self._tokens = _KEPT * self._tokens + tokens
        self._seconds = _KEPT * self._seconds + max(0.0, took_s - self._step_s)

    def note_step(self, took_s: float) -> None:
        """Note that all rows have decoded once."""
        self._step_s = _KEPT * self._step_s + (1 - _KEPT) * took_s if self._step_s else took_s

    def tokens(self, limit_s: float | None) -> int:
        """Return how many tokens a step may prefill in `limit_s`, at least 32; None: in as long as is fair to rows that
        decode.

        The fixed cost of a pass is not counted: the shorter the parts, the more it would take from them. Before
        anything is measured the number is 32 too.
        """
        if not self._tokens:
            return _LEAST_TOKENS
        limit_s = _PATIENCE_S if limit_s is None else limit_s
        return max(_LEAST_TOKENS, min(_MOST_TOKENS, int(limit_s / max(_LEAST_TOKEN_S, self._seconds / self._tokens))))
