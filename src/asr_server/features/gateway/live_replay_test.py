"""A session over several workers: the real session machine as the worker, ended at random moments."""

import json
import random
import re
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.core.audio import SAMPLE_RATE
from asr_server.features.gateway.client_input import ActionKind
from asr_server.features.gateway.live_replay import LiveReplay
from asr_server.features.handover import continuation_wire as continuation
from asr_server.features.handover.continuation import Continuation
from asr_server.features.speakers.diarization.turns import label
from asr_server.live import route
from asr_server.live.actions import parse_action
from asr_server.live.machine.conftest import Run, config, silence, speech
from asr_server.live.machine.events import Audio, Configure, Flush, GetCheckpoint, Interrupted, Reset, TurnConfig
from asr_server.live.machine.session import LiveMachine
from asr_server.live.machine.table import State
from asr_server.live.outbox import Outgoing

_SETTINGS = settings(max_examples=80, deadline=None, derandomize=True)
_FRAME_BYTES = 2 * 512  # of the voice detector


class _Worker:
    """A session behind its wire: frames in, messages out, as late as told. `first_speaker`: None without speakers."""

    def __init__(self, number, rng, delay, longest_s, first_speaker=None):
        self.hello = {"status": "connected", "session_id": f"live_{number}", "sample_rate": SAMPLE_RATE}
        self._first_speaker, self._voices = first_speaker, random.Random(number)
        self.hello |= {} if first_speaker is None else {"speakers": True}
        self._run = Run(LiveMachine(config(max_utterance_samples=longest_s * SAMPLE_RATE)), rng, delay=delay)
        self.contexts = {}
        self.messages = []
        self._finals = []
        self._received = 0

    def send(self, frame):
        if isinstance(frame, bytes):
            self._received += len(frame)
            self._run.feed(Audio(frame))
        else:
            action = parse_action(frame)
            rules = TurnConfig(context=action.words or "")
            events = {"flush": Flush(), "reset": Reset(), "settled": GetCheckpoint(), "config": Configure(rules)}
            self._run.feed(events[action.action])
        self._collect()

    def finish(self):
        self._run.finish(close=False)
        self._collect()

    def left(self, *, clean):
        """The connection ends: what was not read is lost, but for the finals."""
        opened = self._run.session.state not in (State.LISTENING, State.CLOSED)
        self._run.feed(Flush() if clean and opened else Interrupted())
        self._collect()
        self.messages.clear()

    def resumed(self, received):
        """The first message of the next connection; the finals that the client lacks come behind it."""
        self.messages += [final for final in self._finals if json.loads(final)["utterance"] > received]
        return self.hello | {"received_bytes": self._received}

    def _collect(self):
        for asked in self._run.requests:
            self.contexts[asked.utterance] = asked.context
        actions, self._run.actions = self._run.actions, []
        found = (route.render(Outgoing(action)) for action in actions)
        found = [each for message in found if message is not None for each in self._labelled(message)]
        found = [json.dumps(message) for message in found]
        self.messages += found
        self._finals += [message for message in found if json.loads(message).get("is_final")]

    def _labelled(self, message):
        """The message with the speaker of each word, at random, and sometimes behind it with others."""
        if self._first_speaker is None or not message.get("committed"):
            return [message]
        update = {"type": "speaker_update", "utterance": message["utterance"], "speakers_settled": True}
        updates = [update | {"speakers": self._runs(message)}] if self._voices.random() < 0.5 else []
        return [message | {"speakers": self._runs(message), "speakers_settled": False}, *updates]

    def _runs(self, message):
        words = re.findall(r"\s*\S+", message["committed"])
        return [{"speaker": label(self._first_speaker + self._voices.randrange(3)), "text": word} for word in words]


class _Client:
    """Sends, reads, and has its workers ended with a chance of `crashes` at every step.

    A flush shifts the frames behind it, and then a forced cut may find another gap: where there are flushes, the
    longest utterance is long enough for all.
    """

    def __init__(self, rng, *, delay=0.0, crashes=0.0, longest_s=4, speakers=False):
        self._rng, self._delay, self._crashes, self._longest_s = rng, delay, crashes, longest_s
        self._workers = 1
        self._worker = _Worker(1, rng, delay, longest_s, 0 if speakers else None)
        self.replay = LiveReplay(self._worker.hello)
        self.told = []
        self.contexts = {}
        self.most_held = 0

    def send(self, frame):
        if frame in ("left", "lost"):
            self._come_back(clean=frame == "left")
        elif isinstance(frame, bytes):
            self.replay.add_audio(frame, 0.0)
        else:
            self.replay.input.add_action(ActionKind(parse_action(frame).action), frame)
        self._carry()
        while self._rng.random() < self._crashes:
            self._crash()
            self._carry()
        self.most_held = max(self.most_held, self.replay.input.buffer.held_bytes)

    def finish(self):
        while (frame := self.replay.input.next_frame()) is not None:
            self._worker.send(frame)
            self._worker.finish()
            self._read(1.0)
        self._worker.finish()
        self._read(1.0)

    def _carry(self):
        while self._rng.random() > self._crashes and (frame := self.replay.input.next_frame()) is not None:
            self._worker.send(frame)
            self._read(0.8)

    def _read(self, share):
        while self._worker.messages and self._rng.random() < share:
            raw = self._worker.messages.pop(0)
            said = json.loads(raw)
            told = self.replay.on_message(raw, 0.0)
            if told is None:
                continue
            self.told.append(json.loads(told))
            if said.get("is_final"):
                self.contexts[self.told[-1]["utterance"]] = self._worker.contexts.get(said["utterance"], "")

    def _come_back(self, *, clean):
        self._send_last(complete=clean)
        if clean:
            self.replay.input.add_end()
        self._worker.left(clean=clean)
        on_their_way = self._rng.randrange(4)
        self.told = self.told[: len(self.told) - on_their_way]
        received = max((final["utterance"] for final in self.finals), default=0)
        # Whether something was open when it ended only that worker knows: it lives until it has been asked.
        if not clean and self._rng.random() < self._crashes:
            self._crash()
        else:
            self.replay.resumed(self._worker.resumed(self.replay.worker_utterance(received)))
        self.told += [json.loads(final) for final in self.replay.finals_after(received)]
        while clean and (frame := self.replay.input.next_frame()) is not None:
            self._worker.send(frame)
        if clean:
            self._read(1.0)

    def _send_last(self, *, complete):
        """What was sent last may not have arrived: from a frame of audio on, or from within one."""
        broken = False
        while (frame := self.replay.input.next_frame()) is not None:
            if not complete and not broken and isinstance(frame, bytes) and self._rng.random() < 0.3:
                broken, frame = True, frame[: self._rng.randrange(len(frame))]
                self._worker.send(frame)
            elif not broken:
                self._worker.send(frame)

    def _crash(self):
        self._workers += 1
        first_speaker = self.replay.worker_query(0.0).get("first_speaker")
        first_speaker = None if first_speaker is None else int(first_speaker)
        self._worker = _Worker(self._workers, self._rng, self._delay, self._longest_s, first_speaker)
        if (first := self.replay.restarted(self._worker.hello)) is not None:
            self._worker.send(first)
        if (notice := self.replay.take_notice()) is not None:
            self.told.append(json.loads(notice))

    @property
    def finals(self):
        return [message for message in self.told if message.get("is_final")]


def _frames(rng, sentences, *, acts, ends=(), aligned=True):
    """Audio in pieces of any size, actions and ends of connections among them.

    `aligned`: these lie between two frames of the detector. Elsewhere they shift the frames behind them, by which an
    onset or a cut may be found one frame earlier or later in another worker.
    """
    parts = []
    for _ in range(sentences):
        parts.append(silence(rng.choice([40, 200, 900])))
        parts.append(speech([rng.randrange(10) for _ in range(rng.randrange(1, 8))]))
    data = np.concatenate([*parts, silence(900)]).astype("<i2").tobytes()
    frames, at = [], 0
    while at < len(data):
        size = rng.choice([3, 500, 1_024, 4_096, 30_001])
        between = []
        if acts and rng.random() < 0.06:
            between.append(json.dumps(rng.choice([
                {"action": "flush"},
                {"action": "reset"},
                {"action": "config", "hotwords": str(rng.randrange(9))},
            ])))  # fmt: skip
        if ends and rng.random() < 0.06:
            between.append(rng.choice(ends))
        if between and aligned:
            size += -(at + size) % _FRAME_BYTES
        frames += [data[at : at + size], *between]
        at += size
    return [*frames, '{"action":"flush"}']


def _both(seed, frames, delay, longest_s):
    """The client of an undisturbed worker, and that of many."""
    calm = _talk(frames, _Client(random.Random(seed), longest_s=longest_s))
    return calm, _talk(frames, _Client(random.Random(seed), delay=delay, crashes=0.2, longest_s=longest_s))


def _talk(frames, client):
    for frame in frames:
        client.send(frame)
    client.finish()
    return client


def _kept(client):
    """What must be the same however often workers die."""
    return [(m["utterance"], m["text"], m["ending"], client.contexts[m["utterance"]]) for m in client.finals]


def _times(client):
    return [(m["start"], m["end"]) for m in client.finals]


_CASES = {"seed": st.integers(0, 2**32), "sentences": st.integers(1, 6), "delay": st.sampled_from([0.0, 0.7])}


@_SETTINGS
@given(**_CASES, acts=st.booleans())
def test_dying_workers_neither_lose_nor_double_a_word(seed, sentences, delay, acts):
    """Finals, their numbers, endings and hotwords are those of an undisturbed run, and their times."""
    frames = _frames(random.Random(seed), sentences, acts=acts)
    calm, shaken = _both(seed, frames, delay, 30 if acts else 4)
    assert _kept(shaken) == _kept(calm)
    assert _times(shaken) == _times(calm)


@_SETTINGS
@given(**_CASES, acts=st.booleans())
def test_clients_that_are_cut_off_find_all_their_words(seed, sentences, delay, acts):
    """Over broken connections the finals are those of a worker that lives, also when it dies in between."""
    frames = _frames(random.Random(seed), sentences, acts=acts, ends=("lost",))
    calm, shaken = _both(seed, frames, delay, 30)
    assert [f for f in _kept(shaken) if f[1]] == [f for f in _kept(calm) if f[1]]
    numbers = [m["utterance"] for m in shaken.finals]
    assert numbers == sorted(set(numbers))


@_SETTINGS
@given(seed=_CASES["seed"], sentences=_CASES["sentences"], acts=st.booleans())
def test_clients_that_closed_and_came_back_find_all_their_words(seed, sentences, acts):
    """The same over connections that ended in order, which ends an utterance."""
    frames = _frames(random.Random(seed), sentences, acts=acts, ends=("left", "lost"))
    calm, shaken = _both(seed, frames, 0.0, 30)
    assert [f for f in _kept(shaken) if f[1]] == [f for f in _kept(calm) if f[1]]


@_SETTINGS
@given(**_CASES)
def test_every_action_is_answered_once(seed, sentences, delay):
    """Statuses and finals of flushes are as many as without a crash, and in the same order among themselves."""
    frames = _frames(random.Random(seed), sentences, acts=True, aligned=False)

    def answers(client):
        statuses = [m["status"] for m in client.told if "status" in m]
        return statuses, sum(m["ending"] == "flush" for m in client.finals)

    calm = answers(_talk(frames, _Client(random.Random(seed))))
    assert answers(_talk(frames, _Client(random.Random(seed), delay=delay, crashes=0.2))) == calm
    assert "settled" not in calm[0]


@_SETTINGS
@given(**_CASES)
def test_a_committed_word_is_never_taken_back_and_the_shown_audio_never_shrinks(seed, sentences, delay):
    """Within an utterance, over all workers."""
    frames = _frames(random.Random(seed), sentences, acts=False)
    client = _talk(frames, _Client(random.Random(seed), delay=delay, crashes=0.2))
    committed, reached = {}, {}
    for message in client.told:
        number = message["utterance"]
        assert message["text"] == message["committed"] + message["tentative"]
        assert message["text"].startswith(committed.get(number, ""))
        assert message["committed"].startswith(committed.get(number, ""))
        if message["is_partial"]:
            assert message["end"] >= reached.get(number, 0.0)
        committed[number], reached[number] = message["committed"], message["end"]


@_SETTINGS
@given(**_CASES)
def test_labels_stay_when_a_worker_dies_and_no_letter_means_two_people(seed, sentences, delay):
    """Runs are the committed text that the client has. The next worker labels other words alone, by other letters."""
    frames = _frames(random.Random(seed), sentences, acts=False)
    client = _talk(frames, _Client(random.Random(seed), delay=delay, crashes=0.05, speakers=True))
    committed, shown, kept, used, seen = {}, {}, {}, set(), set()
    for message in client.told:
        if message.get("status") == "speakers_restarted":
            kept, used = dict(shown), set(seen)
            continue
        number = message["utterance"]
        committed[number] = message.get("committed", committed.get(number))
        if "speakers" not in message:
            continue
        assert "".join(run["text"] for run in message["speakers"]) == committed[number]
        shown[number] = [run["speaker"] for run in message["speakers"] for _ in run["text"]]
        old = kept.get(number, [])
        assert shown[number][: len(old)] == old
        assert not used & {*shown[number][len(old) :]}
        seen |= {*shown[number]} - {None}


def test_a_client_that_comes_back_gets_finals_with_the_labels_they_have_now():
    """Those of the last update; behind another worker they are settled."""
    replay = LiveReplay({"session_id": "live_1", "sample_rate": SAMPLE_RATE, "speakers": True})
    final = {"text": "one two", "committed": "one two", "tentative": "", "is_final": True, "utterance": 1, "start": 0.0}
    final |= {"end": 0.0, "lag_ms": 0, "ending": "pause", "speakers_settled": False}
    runs = [[{"speaker": who, "text": "one two"}] for who in "AB"]
    replay.on_message(json.dumps(final | {"speakers": runs[0]}), 0.0)
    update = {"type": "speaker_update", "utterance": 1, "speakers": runs[1], "speakers_settled": False}
    assert json.loads(replay.on_message(json.dumps(update), 0.0)) == update
    replay.restarted({"session_id": "live_2"})
    (found,) = map(json.loads, replay.finals_after(0))
    assert (found["speakers"], found["speakers_settled"]) == (runs[1], True)
    assert replay.worker_query(7.5) == {"began_s": "7.5", "first_speaker": "2"}
    assert json.loads(replay.take_notice()) == {"status": "speakers_restarted"}
    assert replay.take_notice() is None


def test_the_next_worker_labels_utterances_by_the_session_s_numbers():
    """Its first one is the session's second here, in texts and in updates."""
    replay = LiveReplay({"session_id": "live_1", "sample_rate": SAMPLE_RATE, "speakers": True})
    replay.add_audio(bytes(4 * SAMPLE_RATE), 0.0)
    text = {"text": "one", "committed": "one", "tentative": "", "lag_ms": 0, "speakers_settled": False}
    text |= {"utterance": 1, "start": 0.0, "end": 1.0, "speakers": [{"speaker": "A", "text": "one"}]}
    replay.on_message(json.dumps(text | {"is_final": True, "ending": "pause"}), 0.0)
    replay.restarted({"session_id": "live_2"})
    partial = json.loads(replay.on_message(json.dumps(text | {"is_final": False}), 0.0))
    runs = [{"speaker": "B", "text": "one"}]
    update = {"type": "speaker_update", "utterance": 1, "speakers": runs, "speakers_settled": False}
    changed = json.loads(replay.on_message(json.dumps(update), 0.0))
    assert (partial["utterance"], changed["utterance"], changed["speakers"]) == (2, 2, runs)


def test_silence_is_not_kept():
    """Ten minutes of it, then speech and a crash: a few seconds are held, and the words come at their time."""
    quiet = np.zeros(10 * 60 * SAMPLE_RATE, "<i2").tobytes()
    client = _Client(random.Random(1))
    for at in range(0, len(quiet), 6_400):
        client.send(quiet[at : at + 6_400])
    assert client.most_held < 12 * 2 * SAMPLE_RATE
    client._crash()
    client.send(np.concatenate([speech([1, 2, 3]), silence(900)]).astype("<i2").tobytes())
    client.finish()
    (final,) = client.finals
    assert final["text"] == "one two three"
    assert 599.5 < final["start"] <= 600


_TEXT = {"text": "one", "committed": "one", "tentative": "", "utterance": 1, "start": 0.0, "end": 1.0, "language": ""}
_FINAL = _TEXT | {"is_final": True, "ending": "pause", "lag_ms": 5}


def _restarted(**hello):
    """A session that has finished two seconds and two utterances, and goes on in another worker."""
    replay = LiveReplay({"session_id": "live_1", "sample_rate": SAMPLE_RATE, **hello})
    replay.add_audio(bytes(6 * SAMPLE_RATE), 10.0)
    while replay.input.next_frame() is not None:
        pass
    for number in (1, 2):
        replay.on_message(json.dumps(_FINAL | {"utterance": number, "start": number - 1.0, "end": float(number)}), 12.0)
    replay.restarted({"session_id": "live_2"})
    return replay


def test_the_lag_counts_from_when_the_audio_first_arrived():
    """Audio that the worker was sent again has it. Later audio has the worker's own lag."""
    replay = _restarted()
    replay.add_audio(bytes(2 * SAMPLE_RATE), 50.0)
    partial = _TEXT | {"is_final": False, "lag_ms": 5}
    assert json.loads(replay.on_message(json.dumps(partial), 50.0))["lag_ms"] == 40_000
    assert json.loads(replay.on_message(json.dumps(partial | {"end": 2.0}), 50.1))["lag_ms"] == 5


def test_a_worker_is_asked_by_its_own_numbers():
    """Finals that the client has of earlier workers are not counted as the worker's own."""
    replay = _restarted()
    assert [replay.worker_utterance(received) for received in (0, 1, 2, 3)] == [0, 0, 0, 1]


def test_words_and_settled_places_are_those_of_the_session():
    """As texts are."""
    replay = _restarted()
    words = {"utterance": 1, "words": [{"word": "one", "start": 0.5, "end": 1.0, "source": "estimated"}]}
    told = json.loads(replay.on_message(json.dumps(words), 0.0))
    assert (told["utterance"], told["words"][0]["start"], told["words"][0]["end"]) == (3, 2.5, 3.0)
    replay.input.add_action(ActionKind.CHECKPOINT, '{"action": "settled"}')
    while replay.input.next_frame() is not None:
        pass
    told = json.loads(replay.on_message('{"status": "settled", "seconds": 0.5, "utterance": 0}', 0.0))
    assert (told["utterance"], told["seconds"]) == (2, 2.5)


def test_a_client_that_comes_back_is_told_nothing_of_the_worker_s_own_session():
    """Its id, counts and continuation are those of the session."""
    replay = _restarted(continuation={})
    hello = {"status": "connected", "session_id": "live_2", "received_bytes": 7, "actions": 9, "continuation": {}}
    told = json.loads(replay.hello_for_client(hello))
    assert told == {
        **{"status": "connected", "session_id": "live_1", "resumed": True},
        **{"received_bytes": 6 * SAMPLE_RATE, "actions": 0},
    }


def test_a_worker_that_is_behind_takes_no_continuation_back():
    """Not to an earlier byte or action; but a letter that was used since counts at once."""
    replay = LiveReplay({"session_id": "live_1", "sample_rate": SAMPLE_RATE, "speakers": True, "continuation": {}})
    replay.add_audio(bytes(2 * SAMPLE_RATE), 0.0)
    replay.input.add_action(ActionKind.FLUSH, '{"action": "flush"}')
    while replay.input.next_frame() is not None:
        pass

    def told(**fields):
        state = Continuation("live_1", 16 * "0", **fields)
        raw = replay.on_message(json.dumps({"status": "continuation", "continuation": continuation.message(state)}), 0)
        return None if raw is None else continuation.parse_state(json.loads(raw)["continuation"]["state"])

    ahead = told(utterances=1, samples=SAMPLE_RATE, received_bytes=2 * SAMPLE_RATE, actions=1)
    assert (ahead.utterances, ahead.received_bytes, ahead.actions) == (1, 2 * SAMPLE_RATE, 1)
    assert told(utterances=1, samples=SAMPLE_RATE, received_bytes=2 * SAMPLE_RATE) is None
    assert told(samples=SAMPLE_RATE // 2, received_bytes=SAMPLE_RATE, actions=1) is None
    runs = [{"speaker": "A", "text": "one"}, {"speaker": "B", "text": " two"}]
    partial = _TEXT | {"text": "one two", "committed": "one two", "is_final": False, "lag_ms": 0, "utterance": 2}
    replay.on_message(json.dumps(partial | {"speakers": runs, "speakers_settled": False}), 0.0)
    assert told(received_bytes=SAMPLE_RATE) == replace(ahead, first_speaker=2)
