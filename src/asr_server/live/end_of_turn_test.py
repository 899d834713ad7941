"""Estimates for all sessions: bounded, and without them the pause rule decides."""

import asyncio
import threading

import numpy as np

from asr_server.live.end_of_turn import EndOfTurnEstimator
from asr_server.live.session_stats import LiveObserver

SPEECH = np.zeros(1_600, np.float32)


class _Counted(LiveObserver):
    def __init__(self):
        self.results = []

    def estimated(self, result):
        self.results.append(str(result))


class _Model:
    """Waits until it may answer."""

    def __init__(self, error=None):
        self.error = error
        self.may_answer = threading.Event()
        self.calls = 0

    def probability(self, speech):
        self.calls += 1
        assert self.may_answer.wait(30)
        if self.error is not None:
            raise self.error
        return 0.7


async def test_where_too_many_ask_the_pause_rule_decides_at_once():
    """Sessions that wait get their answer; one that ended does not keep its place."""
    model, counted = _Model(), _Counted()
    estimator = EndOfTurnEstimator(model, counted)
    waiting = [asyncio.create_task(estimator.probability(SPEECH)) for _ in range(16)]
    await asyncio.sleep(0)
    assert await estimator.probability(SPEECH) is None
    waiting[0].cancel()
    model.may_answer.set()
    assert await asyncio.gather(*waiting[1:]) == [0.7] * 15
    assert await estimator.probability(SPEECH) == 0.7
    assert (counted.results.count("skipped"), counted.results.count("estimated")) == (1, 17)


async def test_a_model_that_fails_costs_the_estimate_alone():
    """The model is asked again: the fault may have been one of memory."""
    model, counted = _Model(RuntimeError("out of memory")), _Counted()
    model.may_answer.set()
    estimator = EndOfTurnEstimator(model, counted)
    assert [await estimator.probability(SPEECH) for _ in range(20)] == [None] * 20
    model.error = None
    assert await estimator.probability(SPEECH) == 0.7
    assert counted.results == ["failed"] * 20 + ["estimated"]


async def test_the_first_session_loads_the_model_and_waits_for_nothing():
    """Once."""
    model = _Model()
    estimator = EndOfTurnEstimator(model, _Counted())
    estimator.warm_up()
    estimator.warm_up()
    model.may_answer.set()
    assert await estimator.probability(SPEECH) == 0.7
    assert model.calls == 2
