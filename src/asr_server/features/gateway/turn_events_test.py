"""The message that a speaker has probably finished, in a session that goes on with another one: by the whole."""

import json

import pytest

from asr_server.features.gateway.live_replay import LiveReplay
from asr_server.features.handover.continuation import Continuation, Offset, ShownUtterance
from asr_server.features.handover.continuation_wire import ContinueRequest
from asr_server.live import route
from asr_server.live.machine.events import EndOfTurnLikely
from asr_server.live.outbox import Outgoing

LIKELY = route.render(Outgoing(EndOfTurnLikely(1, 0.875, 24_000)))


def test_a_likely_end_of_a_turn_has_the_number_and_the_time_of_the_whole():
    """Its probability stays."""
    assert LIKELY == {"type": "turn.likely", "utterance": 1, "probability": 0.875, "end": 1.5}
    told = Offset(utterances=3, seconds=10.25).applied(LIKELY)
    assert told == {"type": "turn.likely", "utterance": 4, "probability": 0.875, "end": 11.75}


@pytest.mark.parametrize("utterances", [0, 3])
def test_behind_a_gateway_too(utterances):
    """The worker of a session that came from another server begins at 1 and at 0 s."""
    moved = Continuation("live_1.a", "0" * 16, utterances=utterances, samples=16_000 * utterances)
    hello = {"session_id": moved.session_id, "sample_rate": 16_000, "continuation": {}}
    replay = LiveReplay(hello, ContinueRequest(moved, ShownUtterance()), utterances)
    told = json.loads(replay.on_message(json.dumps(LIKELY), 0.0))
    assert (told["utterance"], told["end"]) == (1 + utterances, 1.5 + utterances)
