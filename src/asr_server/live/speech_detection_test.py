"""Voice detection for many sessions on one thread, and estimates of the end of turns on another, bounded."""

import asyncio
import threading
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from loguru import logger
from prometheus_client import CollectorRegistry

from asr_server.audio import segmentation
from asr_server.audio.segmentation import SpeechProbability
from asr_server.core.audio import FRAME_SAMPLES
from asr_server.core.conftest import counts
from asr_server.live.machine.events import Audio
from asr_server.live.machine.session import LiveMachine
from asr_server.live.machine.utterance import LiveMachineConfig
from asr_server.live.session_stats import LiveMetrics
from asr_server.live.speech_detection import EndOfTurnEstimator, VoiceDetector


@pytest.fixture
def pcm(speech):
    """Four seconds of it, a whole number of frames."""
    return speech[: 2 * 120 * FRAME_SAMPLES]


@pytest.fixture
def scores():
    """Returns the scores of the events of a new session. All sessions share a detector."""
    detector = VoiceDetector()

    async def scores(*events, stream=None):
        machine, stream, found = LiveMachine(LiveMachineConfig()), stream or SpeechProbability(), []
        for event in events:
            frames = await detector.frames(machine, stream, event)
            machine.receive(event, frames)
            found += [frame.probability for frame in frames]
        return found

    return scores


async def test_scores_do_not_depend_on_pieces_or_on_other_sessions(scores, pcm):
    """Sessions that send pieces of seven sizes at the same time: each gets the scores of the whole, in order."""
    audio = np.frombuffer(pcm, "<i2").astype(np.float32) / 32_768
    whole = SpeechProbability().push(audio)
    pieces = [[Audio(pcm[at : at + size]) for at in range(0, len(pcm), size)] for size in range(640, 7_000, 960)]
    for found in await asyncio.gather(*(scores(*each) for each in pieces)):
        assert np.abs(np.array(found) - whole).max() < 1e-5


@pytest.fixture
def calls(monkeypatch):
    """The number of frames of each call of the network."""
    network, counts = segmentation.load_voice_detector(), []

    def run(outputs, inputs):
        counts.append(len(inputs["frames"]))
        return network.run(outputs, inputs)

    monkeypatch.setattr(segmentation, "load_voice_detector", lambda: SimpleNamespace(run=run))
    return counts


async def test_many_sessions_share_few_calls_of_bounded_size(scores, calls, pcm):
    """One that waits gets in a call with others, but a call for all would make the next ones wait too long."""
    piece = Audio(pcm[: 2 * 4 * FRAME_SAMPLES])
    await asyncio.gather(*(scores(piece) for _ in range(80)))
    assert sum(calls) == 4 * 80
    assert max(calls) <= 128
    assert len(calls) < 10


async def test_a_session_that_ends_while_its_frames_wait_delays_nobody(scores, calls, pcm):
    """Nor does one whose frames are being computed."""
    piece = Audio(pcm[: 2 * 4 * FRAME_SAMPLES])
    waiting, under_way, *others = (asyncio.create_task(scores(piece)) for _ in range(4))
    await asyncio.sleep(0)
    waiting.cancel()
    while not calls:  # noqa: ASYNC110 - another thread works
        await asyncio.sleep(0)
    under_way.cancel()
    first, second = await asyncio.gather(*others)
    assert first == second
    assert waiting.cancelled()
    assert under_way.cancelled()


async def test_a_fault_of_one_session_fails_no_other_of_the_same_call(scores, pcm):
    piece = Audio(pcm[: 2 * 4 * FRAME_SAMPLES])
    broken, whole = scores(piece, stream="no stream"), scores(piece)
    fault, found = await asyncio.gather(broken, whole, return_exceptions=True)
    assert isinstance(fault, AttributeError)
    assert len(found) == 4


SPEECH = np.zeros(1_600, np.float32)


async def test_where_too_many_ask_the_pause_rule_decides_at_once():
    """Sessions that wait get their answer; one that ended does not keep its place."""
    may_answer, registry = threading.Event(), CollectorRegistry()
    model = SimpleNamespace(probability=lambda speech: may_answer.wait(30) and 0.7)
    estimator = EndOfTurnEstimator(model, LiveMetrics(registry))
    waiting = [asyncio.create_task(estimator.probability(SPEECH)) for _ in range(16)]
    await asyncio.sleep(0)
    assert await estimator.probability(SPEECH) is None
    waiting[0].cancel()
    may_answer.set()
    assert await asyncio.gather(*waiting[1:]) == [0.7] * 15
    assert await estimator.probability(SPEECH) == 0.7
    assert counts(registry, "asr_live_end_of_turn_total") == {("skipped",): 1, ("estimated",): 17}


async def test_a_model_that_fails_costs_the_estimate_alone():
    """The model is asked again: the fault may have been one of memory. It is logged once, not in every pause."""
    model, registry, lines = Mock(), CollectorRegistry(), []
    model.probability.side_effect = RuntimeError("out of memory")
    estimator = EndOfTurnEstimator(model, LiveMetrics(registry))
    sink = logger.add(lines.append, level="WARNING")
    assert [await estimator.probability(SPEECH) for _ in range(20)] == [None] * 20
    logger.remove(sink)
    assert len(lines) == 1
    model.probability = lambda speech: 0.7
    assert await estimator.probability(SPEECH) == 0.7
    assert counts(registry, "asr_live_end_of_turn_total") == {("failed",): 20, ("estimated",): 1}
