"""A session over several workers that end at random moments: the real machine, with its handover, in each worker."""

import json
import random
import time
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from asr_server.core.audio import SAMPLE_RATE
from asr_server.features.gateway.carried_session import CarriedSession
from asr_server.features.handover import continuation
from asr_server.features.handover.continuation import Continuation
from asr_server.features.handover.handover import HandoverOptions
from asr_server.features.handover.handover_test import CASES, ID, RULES, SETTINGS, Client, Server, Text, frames_of, talk
from asr_server.live import route
from asr_server.live.actions import CLIENT_LEFT, parse_action
from asr_server.live.machine.events import (
    Configure,
    Detection,
    Ending,
    Final,
    Flush,
    GetCheckpoint,
    Interrupted,
    Reset,
    TurnConfig,
)
from asr_server.live.machine.table import State
from asr_server.live.outbox import Outgoing

_EVENTS = {"flush": Flush(), "reset": Reset(), "settled": GetCheckpoint()}
_ACTIONS = {type(event): action for action, event in _EVENTS.items()}


class _Worker(Server):
    """A server behind its wire."""

    def __init__(self, rng, delay, longest_s, options, rate_hz):
        super().__init__(rng, delay, longest_s, options, rate_hz)
        begin, self._finals = self.handover.begin, []
        self.received_bytes, self.actions = begin.received_bytes, begin.actions
        self.messages.clear()
        self.hello = {"session_id": ID, "sample_rate": rate_hz, **self._resumed()}
        self.hello |= {"continuation": continuation.wire_message(self.handover.newest)}
        self.hello |= {"continued": True} if options.begin is not None else {}

    def _resumed(self):
        return {"resumed": True, "received_bytes": self.received_bytes, "actions": self.actions}

    def send(self, frame):
        if isinstance(frame, bytes):
            self.received_bytes += len(frame)
        elif frame == CLIENT_LEFT:
            self.left(clean=True)
            return
        else:
            self.actions += 1
            action = parse_action(frame)
            rules = TurnConfig(Detection.MANUAL if action.manual else Detection.VOICE, context=action.words or "")
            frame = _EVENTS.get(action.action, Configure(rules))
        super().send(frame)

    def left(self, *, clean):
        """The client's connection ends."""
        self._feed(Flush() if clean and self.is_in_speech else Interrupted())

    @property
    def is_in_speech(self):
        """True if an utterance is open, which a client that leaves in order ends."""
        return self.machine.state not in (State.LISTENING, State.CLOSED)

    def resumed(self, received):
        """The first message of the next connection; the finals that the client lacks come after it."""
        lacked = [raw for number, raw in self._finals if number > received]
        self.messages[:] = [*lacked, self.handover.continuation(self.machine)]
        return {"session_id": ID, **self._resumed()}

    def _in_session(self, message):
        raw = json.dumps(self.handover.on_wire(route.render(Outgoing(message)) or {}))
        if isinstance(message, Final):
            self._finals.append((message.utterance + self.handover.begin.utterances, raw))
        return raw


class _Gateway:
    """A gateway in the place of a `Server`. Its worker dies with a chance of `crashes` at every step."""

    crashes = 0.15

    def __init__(self, rng, delay, longest_s, options, rate_hz):
        self._rng = rng
        self._make = lambda options: _Worker(rng, delay, longest_s, options, rate_hz)
        self._worker = self._make(options)
        self.session = CarriedSession(self._worker.hello, options.received, can_move=True)
        self.messages = [_taken(self._worker.hello, "")]
        self.most_held = 0
        self.left_in_speech = []  # for each client that left

    def send(self, frame):
        if isinstance(frame, bytes):
            self.session.add_audio(frame, 0.0)
        elif isinstance(frame, Configure):
            manual = frame.rules.detection is Detection.MANUAL
            fields = {"hotwords": frame.rules.context, "endpointing": "manual" if manual else "auto"}
            self.session.add_action("config", json.dumps({"action": "config", **fields}))
        else:
            kind = _ACTIONS[type(frame)]
            self.session.add_action(kind, json.dumps({"action": kind}))
        while self._rng.random() > self.crashes and (raw := self.session.input.next_frame()) is not None:
            self._worker.send(raw)
            self._read(0.8)
        while self._rng.random() < self.crashes:
            self.crash()
        self.most_held = max(self.most_held, self.session.input.held_bytes)

    def crash(self):
        """The next worker goes on from what this one has said."""
        query = self.session.worker_query(0.0)
        asked = continuation.parse_frame(self.session.first_frame, query["session_id"], int(query["received"]))
        self._worker = self._make(HandoverOptions(RULES, asked.state, asked.shown, int(query["received"])))
        assert self.session.went_on(self._worker.hello) == 0

    def come_back(self, *, clean):
        """The client's connection ends, and with it the worker's; the next client has all finals but the last two."""
        while (raw := self.session.input.next_frame()) is not None:
            if not clean and self._rng.random() < 0.3:
                self._worker.send(raw[: self._rng.randrange(len(raw))] if isinstance(raw, bytes) else raw)
                break
            self._worker.send(raw)
        self.left_in_speech.append(self._worker.is_in_speech)
        self._worker.left(clean=clean)
        if clean:
            self.session.add_end()
        if self._rng.random() < 0.3:
            self.crash()
        else:
            received = int(self.session.worker_query(0.0)["received"])
            assert self.session.went_on(self._worker.resumed(received)) == 0

    def finish(self):
        while (raw := self.session.input.next_frame()) is not None:
            self._worker.send(raw)
        self._worker.finish()
        self._read(1.0)

    def _read(self, share):
        while self._worker.messages and self._rng.random() < share:
            raw = self._worker.messages.pop(0)
            if isinstance(raw, Continuation):
                raw = json.dumps({"status": "continuation", "continuation": continuation.wire_message(raw)})
            if raw == "{}" or (told := self.session.on_message(raw)) is None:
                continue
            told = json.loads(told)
            number = told.get("utterance", 0) - self._worker.handover.begin.utterances
            self.messages.append(_taken(told, self._worker.contexts.get(number, "")))


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


def _both(seed, frames, delay, longest_s, **more):
    calm = talk(frames, Client(random.Random(seed), longest_s=longest_s))
    shaken = Client(random.Random(seed), delay=delay, longest_s=longest_s, server=_Gateway, **more)
    return calm, talk(frames, shaken)


@SETTINGS
@given(**CASES, acts=st.booleans(), moves=st.sampled_from([0.0, 0.1]))
def test_dying_workers_neither_lose_nor_double_a_word(seed, sentences, delay, acts, moves):
    """Finals have the words, numbers, endings, hotwords and times of an undisturbed run, at one gateway or at many."""
    frames = frames_of(random.Random(seed), sentences, acts=acts)
    calm, shaken = _both(seed, frames, delay, 30 if acts else 4, moves=moves)
    assert _kept(shaken) == _kept(calm)


@SETTINGS
@given(**CASES)
def test_every_action_is_answered_once(seed, sentences, delay):
    """Answers are as many as without a crash, and in the same order; finals of flushes are as many.

    A worker that begins within a frame of the voice detection may hear a pause a frame earlier, before the flush.
    """
    frames = frames_of(random.Random(seed), sentences, acts=True, aligned=False)
    calm, shaken = _both(seed, frames, delay, 30)
    names = {"buffer_reset": "ResetDone", "configured": "Configured", "settled": "Checkpoint"}
    assert [names[status] for status in shaken.answers] == [name for name in calm.answers if name in names.values()]
    flushed, expected = ([m.ending for m in run.finals.values()].count(Ending.FLUSH) for run in (shaken, calm))
    assert flushed == expected


@SETTINGS
@given(**CASES, acts=st.booleans())
def test_a_committed_word_is_never_taken_back_and_the_shown_audio_never_shrinks(seed, sentences, delay, acts):
    """Within an utterance, over all workers; and nothing is said any more of one that has its final."""
    frames = frames_of(random.Random(seed), sentences, acts=acts)
    client = talk(frames, Client(random.Random(seed), delay=delay, longest_s=30, server=_Gateway))
    committed, reached, ended = {}, {}, 0
    for text in client.texts:
        assert text.number > ended
        assert text.text.startswith(committed.get(text.number, ""))
        assert text.committed.startswith(committed.get(text.number, ""))
        if text.ending is None:
            assert text.times[1] >= reached.get(text.number, 0)
        else:
            ended = text.number
        committed[text.number], reached[text.number] = text.committed, text.times[1]


@SETTINGS
@given(**CASES, clean=st.booleans())
def test_clients_that_were_away_find_all_their_words(seed, sentences, delay, clean):
    """Their connection broke, or they closed it, which ends an utterance; the worker may die in between.

    A worker that begins within a frame of the voice detection may hear speech a frame earlier, before the client left.
    """

    def spoken(crashes):
        rng = random.Random(seed)
        frames = frames_of(rng, sentences, acts=False)
        away = {number for number in range(len(frames)) if rng.random() < 0.1}
        client = Client(random.Random(seed), delay=delay if crashes else 0.0, longest_s=30, server=_Gateway)
        client._server.crashes = crashes
        for number, frame in enumerate(frames):
            client.send(frame)
            if number in away and (crashes or clean):
                client._server.finish()
                client._server.come_back(clean=clean)
        client.finish()
        words = [(n, text.text) for n, text in sorted(client.finals.items()) if text.text]
        return words, client._server.left_in_speech

    (words, left_in_speech), (expected, expected_in_speech) = spoken(0.1), spoken(0.0)
    assume(not clean or left_in_speech == expected_in_speech)
    assert words == expected


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


@pytest.mark.parametrize("frame", [bytes(6_400), Flush(), GetCheckpoint()], ids=["audio", "flushes", "actions"])
def test_silence_is_not_kept(frame):
    """A few seconds are held of minutes of silence, and some dozens of the actions in it."""
    client = Client(random.Random(1), server=_Gateway)
    client._server.crashes = 0.0
    for _ in range(600):
        client.send(frame)
        client._server.finish()
        client._read(1.0)
    assert client._server.most_held < (12 * 2 * SAMPLE_RATE if isinstance(frame, bytes) else 80 * 33_000)


_STATE = Continuation(ID, 16 * "0", 2, 2 * SAMPLE_RATE, 4 * SAMPLE_RATE, 5)
_TEXT = {"text": "one", "committed": "one", "tentative": "", "utterance": 3, "start": 2.0, "end": 3.0, "language": ""}
_PARTIAL = _TEXT | {"is_final": False, "lag_ms": 5}


def _hello(state, **more):
    place = {"received_bytes": state.received_bytes, "actions": state.actions}
    field = {"continuation": continuation.wire_message(state)}
    return {
        "status": "connected",
        "session_id": ID,
        "sample_rate": SAMPLE_RATE,
        "resumed": True,
        **place,
        **field,
        **more,
    }


def _session(**more):
    """A session that has finished two seconds, with two more of audio that came 40 s ago, and a refused action."""
    session = CarriedSession(_hello(_STATE), 2, **more)
    session.add_audio(bytes(4 * SAMPLE_RATE), time.monotonic() - 40)
    session.add_refused_action()
    while session.input.next_frame() is not None:
        pass
    return session


def _lag_ms(session, **fields):
    return json.loads(session.on_message(json.dumps(_PARTIAL | fields)))["lag_ms"]


def test_the_lag_counts_from_when_the_audio_first_arrived():
    """Audio that the worker was sent again has it. Later audio has the worker's own lag."""
    session = _session()
    assert _lag_ms(session) == 5
    session.went_on(_hello(replace(_STATE, issuer=16 * "1"), continued=True))
    session.add_audio(bytes(2 * SAMPLE_RATE), time.monotonic())
    assert 40_000 <= _lag_ms(session, end=4.0) < 100_000
    assert _lag_ms(session, end=4.5) == 5


def test_a_client_is_told_nothing_that_the_gateway_alone_has_asked_for():
    """Neither continuations nor the counts of the worker; a client that asks for them gets both."""
    raw = json.dumps({"status": "continuation", "continuation": continuation.wire_message(_STATE)})
    session, moving = _session(), _session(can_move=True)
    assert (session.on_message(raw), moving.on_message(raw)) == (None, raw)
    new = json.loads(session.hello_for_new_client(_hello(_STATE)))
    assert not new.keys() & {"continuation", "continued", "actions"}
    assert json.loads(moving.hello_for_new_client(_hello(_STATE))) == _hello(_STATE)
    hello = _hello(_STATE, continued=True)
    told = {name: hello[name] for name in ("status", "session_id", "sample_rate", "resumed")}
    told |= {"received_bytes": 8 * SAMPLE_RATE}
    assert json.loads(session.hello_for_client(hello)) == told
    assert json.loads(moving.hello_for_client(hello)) == told | {"actions": 6}


def test_an_action_that_was_refused_is_counted_and_its_answer_is_not_passed_on():
    """The worker gets another one in its place; an action of the client's own is answered."""
    session = _session()
    settled = json.dumps({"status": "settled", "seconds": 2.0, "utterance": 2})
    assert session.on_message(settled) is None
    session.add_action("settled", '{"action": "settled"}')
    assert session.on_message(settled) == settled
    assert session.input.actions == 7


def test_states_of_all_workers_of_a_session_are_its_own():
    """A client may have that of the worker before; that of another server is newer than the session here."""
    session = _session()
    session.went_on(_hello(replace(_STATE, issuer=16 * "1"), continued=True))
    issuers = [16 * number for number in "012"]
    assert [session.issued(replace(_STATE, issuer=issuer)) for issuer in issuers] == [True, True, False]


def test_the_next_worker_is_told_the_labels_that_the_client_has_now():
    """These are the labels of the open utterance. Those of finals that a client gets when it comes back are settled."""
    session = _session()
    runs = [[{"speaker": who, "text": "one"}] for who in "ABC"]
    final = _PARTIAL | {"is_final": True, "speakers": runs[0], "speakers_settled": False}
    for message in (
        final,
        {"type": "speaker_update", "utterance": 3, "speakers": runs[1], "speakers_settled": False},
        _PARTIAL | {"utterance": 4, "end": 3.5, "speakers": runs[1]},
        {"type": "speaker_update", "utterance": 4, "speakers": runs[2], "speakers_settled": False},
    ):
        session.on_message(json.dumps(message))
    frame = json.loads(session.first_frame)
    assert (frame["utterance"], frame["committed"], frame["end"], frame["speakers"]) == (4, "one", 3.5, runs[2])
    session.went_on(_hello(replace(_STATE, issuer=16 * "1"), continued=True))
    (kept,) = map(json.loads, session.finals_after(2))
    assert kept == final | {"speakers": runs[1], "speakers_settled": True}
    assert session.finals_after(3) == []


def test_too_much_to_be_told_is_left_out():
    """The next worker would refuse it."""
    session = _session()
    session.on_message(json.dumps(_PARTIAL | {"committed": 2_001 * "x"}))
    assert json.loads(session.first_frame).keys() == {"action", "state"}


def test_the_next_worker_is_told_when_its_audio_was_spoken():
    """The time moves with the place where the session goes on, or its client would seem to have sent ahead."""
    session = _session()
    assert session.worker_query(100.0)["began_s"] == "100.0"
    later = replace(_STATE, samples=4 * SAMPLE_RATE, received_bytes=8 * SAMPLE_RATE)
    session.on_message(json.dumps({"status": "continuation", "continuation": continuation.wire_message(later)}))
    assert session.worker_query(100.0)["began_s"] == "102.0"


def test_an_utterance_that_was_discarded_is_not_shown_to_the_next_worker():
    """The frame has its committed words before the reset, and not after it."""
    session = _session()
    session.on_message(json.dumps(_PARTIAL))
    assert json.loads(session.first_frame)["committed"] == "one"
    session.add_action("reset", '{"action": "reset"}')
    session.on_message(json.dumps({"status": "buffer_reset"}))
    assert "committed" not in json.loads(session.first_frame)
