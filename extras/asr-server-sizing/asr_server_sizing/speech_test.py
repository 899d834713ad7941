import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from asr_server.core.audio import FRAME_SAMPLES, SAMPLE_RATE
from asr_server.live.machine.events import Audio, ResultKind, Transcribe, TranscribeResult, TurnConfig, UtteranceEnded
from asr_server.live.machine.session import LiveMachine
from asr_server.live.machine.utterance import Frame, LiveMachineConfig
from asr_server_sizing import speech
from asr_server_sizing.speech import Ask

FRAME_S = FRAME_SAMPLES / SAMPLE_RATE


def _machine_asks(regions, length_s):
    """What the real state machine asks for while someone speaks in these regions: seconds, and the kind."""
    config = LiveMachineConfig(
        resampler=lambda rate: lambda block, last: block,
        rules=TurnConfig(min_silence_ms=500),
    )
    machine, found = LiveMachine(config), []
    pcm = np.zeros(FRAME_SAMPLES, "<i2").tobytes()
    for number in range(int(length_s / FRAME_S)):
        is_speech = any(begin <= number * FRAME_S < end for begin, end in regions)
        samples = machine.block(Audio(pcm)).samples()
        actions = machine.receive(Audio(pcm), [Frame(samples, 0.9 if is_speech else 0.0)])
        while actions:
            action = actions.pop(0)
            at_s = (number + 1) * FRAME_S
            if isinstance(action, Transcribe):
                kind = Ask.PARTIAL if action.kind is ResultKind.PARTIAL else Ask.PAUSE
                found.append((kind, at_s))
                text = f"words {at_s}"
                actions += machine.receive(
                    TranscribeResult(action.ticket, text, "English", (1,), (len(text),), (-0.1,))
                )
            elif isinstance(action, UtteranceEnded):
                found.append((Ask.END, at_s))
    return found


@pytest.mark.parametrize(
    "regions",
    [
        [(1.0, 3.0)],
        [(1.0, 1.4), (3.0, 3.9)],
        [(0.5, 2.0), (2.1, 3.1), (3.5, 5.1)],
        [(0.0, 12.7), (13.1, 20.0), (21.0, 22.0)],
    ],
)
def test_a_session_asks_when_the_state_machine_does(regions, rules):
    """The same requests, each within three frames."""
    expected = _machine_asks(regions, regions[-1][1] + 1)
    found = [(asked.ask, asked.at_s) for asked in speech.asks(regions, rules)]
    assert [kind for kind, _ in found] == [kind for kind, _ in expected]
    assert [at_s for _, at_s in found] == pytest.approx([at_s for _, at_s in expected], abs=3.01 * FRAME_S)


def test_an_utterance_without_a_pause_is_cut(rules):
    """At its most, and the next one begins there."""
    asks = speech.asks([(1.0, 70.0)], replace(rules, prefix_s=0.0))
    ends = [(asked.start_s, asked.end_s) for asked in asks if asked.ask is Ask.END]
    assert ends[:2] == [(1.0, 31.0), (31.0, 61.0)]
    assert len(ends) == 3


@pytest.mark.parametrize("voiced", [0.2, 0.5, 0.8])
def test_people_speak_for_the_share_of_the_time_that_was_stated(voiced):
    """Within a tenth of it over hours."""
    regions = speech.conversation(random.Random(4), 40_000.0, voiced)
    assert sum(end - begin for begin, end in regions) / 40_000 == pytest.approx(voiced, rel=0.1)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(regions))
