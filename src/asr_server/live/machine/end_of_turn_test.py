"""How long a pause may be where it is estimated whether the speaker has finished."""

import numpy as np
import pytest

from asr_server.live.machine.conftest import Run, begun, pcm, receive, silence, speech
from asr_server.live.machine.events import (
    EndOfTurnEstimated,
    EndOfTurnLikely,
    EndOfTurnRules,
    EstimateEndOfTurn,
    Final,
    Reset,
    TurnConfig,
    UtteranceEnded,
)
from asr_server.live.machine.session import LiveMachine
from asr_server.live.machine.utterance import LiveMachineConfig

RULES = TurnConfig(min_silence_ms=500, end_of_turn=EndOfTurnRules(sure=0.8, longest_ms=2_000))


class _Judged(Run):
    """A run in which each estimate is answered at once, with the next of some probabilities; None is no answer."""

    def __init__(self, answers, **changes):
        super().__init__(LiveMachine(LiveMachineConfig(rules=RULES, **changes)))
        self.answers = list(answers)

    def _perform(self, actions):
        super()._perform(actions)
        for action in actions:
            if isinstance(action, EstimateEndOfTurn) and (probability := self.answers.pop(0)) is not None:
                self._perform(receive(self.session, EndOfTurnEstimated(action.position_samples, probability)))


def _heard(answers, pause_ms, **changes):
    run = _Judged(answers, **changes)
    run.say(silence(400), speech([1, 2, 3]), silence(pause_ms), speech([4, 5]), silence(3_000))
    run.finish()
    return run


@pytest.mark.parametrize(
    ("probability", "longest_ms", "shortest_ms"),
    [(0.9, 180, 300), (0.6, 400, 640), (0.1, 1_900, 2_200), (None, 400, 640)],
)
def test_a_pause_is_as_long_as_the_estimate_says(probability, longest_ms, shortest_ms):
    """Short after a sure end, long where the end is unlikely; between, and without an answer, the pause rule."""
    assert len(_heard([probability] * 3, longest_ms).of(Final)) == 1
    beyond = _heard([probability] * 3, shortest_ms).of(Final)
    assert [(final.text, final.end_of_turn) for final in beyond] == [
        ("one two three", probability),
        ("four five", probability),
    ]


def test_each_pause_is_judged_once_by_the_audio_before_it():
    """After 200 ms, with all of the utterance and the quiet after it."""
    first, second = (asked.audio for asked in _heard([0.1, 0.1], 1_500).of(EstimateEndOfTurn))
    assert 200 * 16 <= len(first) - 3 * 280 * 16 <= 700 * 16  # three words with the prefix before them and the quiet
    assert len(second) > len(first) + 1_500 * 16
    assert not np.any(first[-150 * 16 :])


def test_an_estimate_that_comes_when_speech_goes_on_means_nothing():
    """Nor one for a pause before."""
    run = begun(rules=RULES)
    run.say(speech([1, 2, 3]), silence(300))
    (asked,) = run.of(EstimateEndOfTurn)
    run.feed(pcm(speech([4])))
    run.feed(EndOfTurnEstimated(asked.position_samples, 0.99))
    run.feed(pcm(silence(300)))
    run.feed(EndOfTurnEstimated(asked.position_samples, 0.99))
    run.feed(pcm(silence(100)))
    assert not run.of(UtteranceEnded)
    run.feed(Reset())
    run.feed(EndOfTurnEstimated(asked.position_samples, 0.99))
    assert not run.of(EndOfTurnLikely)


def test_a_long_pause_inside_a_sentence_divides_the_utterance_into_parts():
    """The estimate holds for the whole pause, also where it is too long for one request."""
    run = _heard([0.1, 0.1], 1_500, max_pause_samples=12_800)
    (final,) = run.of(Final)
    assert [part.text for part in final.parts] == ["one two three", "four five"]
