import numpy as np
import pytest

from asr_server.core.errors import TranscriptionFailed
from asr_server.engine.protocol import EngineInfo, Finish, Hypothesis, Utterance
from asr_server.schedule.ports import RowDelta, RowDone, RowFailed
from asr_server_sizing.measure import Measurement
from asr_server_sizing.profile import PARTIAL_PASSES, PROMPT_TOKENS, TOKENS_PER_S, StepCosts

COSTS = StepCosts(decode_s=0.01, decode_row_s=0.002, prefill_s=0.03, prefill_token_s=1e-4)
CLIP = np.zeros(16_000 * 6, np.float32)


class ClockedEngine:
    """An engine whose steps take what `COSTS` say, by a clock of its own: four tokens for each second of audio. A step
    begins two rows at most, beside those that decode."""

    info = EngineInfo("test", "a model", "cuda", "float32", gpu_name="a card", slots=6)

    def __init__(self, finish=Finish.END, error=None):
        self.now_s, self.rows, self._finish, self._error = 0.0, {}, finish, error

    @property
    def free_slots(self):
        return self.info.slots - len(self.rows)

    def admit(self, key: int, item: Utterance) -> None:
        self.rows[key] = [item, None]

    def drop(self, key):
        self.rows.pop(key, None)

    def step(self):
        decoding = [key for key, (_, left) in self.rows.items() if left is not None]
        new = [key for key, (_, left) in self.rows.items() if left is None][:2]
        if decoding:
            self.now_s += COSTS.decode(len(decoding))
        for key in decoding:
            self.rows[key][1] -= 1
            yield from self._outcomes(key)
        if new:
            self.now_s += COSTS.prefill(sum(self._tokens(self.rows[key][0]) for key in new))
        for key in new:
            item = self.rows[key][0]
            self.rows[key][1] = 2 if item.draft else 4 * len(item.audio) // 16_000
            yield from self._outcomes(key)

    @staticmethod
    def _tokens(item):
        return len(item.audio) / 16_000 * 13 + len(item.draft) + PROMPT_TOKENS

    def _outcomes(self, key):
        if self._error:
            yield RowFailed(key, self._error)
            return
        yield RowDelta(key, None)
        item, left = self.rows[key]
        if left == 0:
            del self.rows[key]
            ids, passes = (1,) * (4 * len(item.audio) // 16_000), 3 if item.draft else 1
            yield RowDone(key, Hypothesis("", "", ids, (), self._finish, 0, 0, passes))


def _measured(engine):
    return Measurement(engine, CLIP, lambda: engine.now_s).profile()


def test_the_costs_of_the_engine_are_found():
    """Those that it has, to a hundredth."""
    found = _measured(ClockedEngine())
    measured = (found.steps.decode_s, found.steps.decode_row_s, found.steps.prefill_s, found.steps.prefill_token_s)
    assert measured == pytest.approx((0.01, 0.002, 0.03, 1e-4), rel=0.01)
    assert (found.model, found.hardware, found.slots, found.measured_rows) == ("a model", "a card", 6, 6)
    assert (found.tokens_per_s, set(found.partial_passes), found.assumptions) == (4.0, {3}, ())


def test_answers_that_do_not_end_say_nothing_of_answers():
    """Random weights: their steps are measured, and the length of answers is assumed and said to be."""
    found = _measured(ClockedEngine(Finish.BUDGET))
    assert (found.tokens_per_s, found.partial_passes) == (TOKENS_PER_S, PARTIAL_PASSES)
    assert "assumed" in found.assumptions[0]
    assert found.steps.prefill_s == pytest.approx(0.03, rel=0.01)


def test_a_row_that_fails_is_the_error():
    """Nothing is measured then."""
    with pytest.raises(TranscriptionFailed):
        _measured(ClockedEngine(error=TranscriptionFailed("no")))
