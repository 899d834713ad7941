"""Sessions that move between gateways, whose workers die: the real session machine in each worker."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.core.audio import SAMPLE_RATE
from asr_server.features.gateway.client_input import ActionKind
from asr_server.features.gateway.live_replay import LiveReplay
from asr_server.features.handover import continuation_wire as continuation
from asr_server.features.handover.continuation import Continuation
from asr_server.features.handover.continuation_wire import ContinueRequest
from asr_server.features.handover.handover import HandoverOptions
from asr_server.features.handover.handover_test import CASES, ID, RULES, SETTINGS, Client, Server, Text, frames_of, talk
from asr_server.live import route
from asr_server.live.actions import parse_action
from asr_server.live.machine.events import Configure, Detection, Ending, Flush, GetCheckpoint, Reset, TurnConfig
from asr_server.live.outbox import Outgoing

_EVENTS = {"flush": Flush(), "reset": Reset(), "settled": GetCheckpoint()}
_KINDS = {Flush: ActionKind.FLUSH, Reset: ActionKind.RESET, GetCheckpoint: ActionKind.CHECKPOINT}
_CRASHES = 0.1


class _Worker(Server):
    """A server behind its wire."""

    def send(self, frame):
        if isinstance(frame, str):
            action = parse_action(frame)
            rules = TurnConfig(Detection.MANUAL if action.manual else Detection.VOICE, context=action.words or "")
            frame = _EVENTS.get(action.action, Configure(rules))
        super().send(frame)

    def _in_session(self, message):
        return json.dumps(route.render(Outgoing(message)))


class _Gateway:
    """In the place of a `Server`. Its worker dies with a chance of `_CRASHES` at every step."""

    def __init__(self, rng, delay, longest_s, options, rate_hz):
        self._rng = rng
        self._make = lambda: _Worker(rng, delay, longest_s, HandoverOptions(RULES), rate_hz)
        self._hello = {"session_id": ID, "sample_rate": rate_hz, "continuation": {}}
        self._worker = self._make()
        moved = ContinueRequest(options.begin, options.shown) if options.begin is not None else None
        self._replay = LiveReplay(self._hello, moved, options.received)
        if self._replay.first_frame is not None:
            self._worker.send(self._replay.first_frame)
        self.messages = [self._replay.continuation]

    def send(self, frame):
        if isinstance(frame, bytes):
            self._replay.add_audio(frame, 0.0)
        elif isinstance(frame, Configure):
            manual = frame.rules.detection is Detection.MANUAL
            fields = {"hotwords": frame.rules.context, "endpointing": "manual" if manual else "auto"}
            self._replay.input.add_action(ActionKind.CONFIG, json.dumps({"action": "config", **fields}))
        else:
            kind = _KINDS[type(frame)]
            self._replay.input.add_action(kind, json.dumps({"action": kind.value}))
        while (raw := self._replay.input.next_frame()) is not None:
            self._worker.send(raw)
            self._read(0.8)
        if self._rng.random() < _CRASHES:
            self._worker = self._make()
            if (first := self._replay.restarted(self._hello)) is not None:
                self._worker.send(first)

    def finish(self):
        while (raw := self._replay.input.next_frame()) is not None:
            self._worker.send(raw)
            self._worker.finish()
            self._read(1.0)
        self._worker.finish()
        self._read(1.0)

    def _read(self, share):
        while self._worker.messages and self._rng.random() < share:
            raw = self._worker.messages.pop(0)
            if isinstance(raw, Continuation):
                raw = json.dumps({"status": "continuation", "continuation": continuation.message(raw)})
            if raw == "null" or (told := self._replay.on_message(raw, 0.0)) is None:
                continue
            context = self._worker.contexts.get(json.loads(raw).get("utterance"), "")
            self.messages.append(_taken(json.loads(told), context))


def _taken(message, context):
    """A message of the wire, as `Client` takes it."""
    if "continuation" in message:
        return continuation.parse_state(message["continuation"]["state"])
    if "text" not in message:
        return message["status"], message
    times = tuple(round(message[name] * SAMPLE_RATE) for name in ("start", "end"))
    ending = Ending(message["ending"]) if message["is_final"] else None
    return Text(message["utterance"], message["text"], message["committed"], times, ending, context)


def _kept(client):
    return [(n, m.text, m.ending, m.context, m.times) for n, m in sorted(client.finals.items())]


@pytest.mark.nightly
@SETTINGS
@given(**CASES, acts=st.booleans())
def test_a_session_over_many_gateways_has_the_finals_of_one_server(seed, sentences, delay, acts):
    """Also where their workers die in between."""
    frames, longest_s = frames_of(random.Random(seed), sentences, acts=acts), 30 if acts else 4
    calm = talk(frames, Client(random.Random(seed), longest_s=longest_s))
    client = Client(random.Random(seed), delay=delay, moves=0.1, longest_s=longest_s, server=_Gateway)
    assert _kept(talk(frames, client)) == _kept(calm)


@pytest.mark.parametrize("gateway_first", [True, False])
def test_a_session_moves_between_a_gateway_and_a_server_without_one(gateway_first):
    """Both issue and take the same states."""
    for seed in range(10):
        frames = frames_of(random.Random(seed), 4, acts=True)
        calm = talk(frames, Client(random.Random(seed), longest_s=30))
        kinds = [_Gateway, Server] if gateway_first else [Server, _Gateway]
        made = []

        def other(*args, kinds=kinds, made=made):
            made.append(kinds[len(made) % 2](*args))
            return made[-1]

        client = Client(random.Random(seed), moves=0.1, longest_s=30, server=other)
        assert _kept(talk(frames, client)) == _kept(calm)
        assert len(made) > 1
