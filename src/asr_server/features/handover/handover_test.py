"""A session over several servers: the real machine, cut at random moments, and a client that carries it on."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.transcript import SpeakerRun
from asr_server.features.handover.continuation import Offset, ShownUtterance, TurnSettings
from asr_server.features.handover.handover import BytePositions, HandoverOptions, SessionHandover
from asr_server.features.speakers.live_labels import UtteranceSpeakers
from asr_server.live import route
from asr_server.live.machine.conftest import config, receive, recognize, result_for, silence, speech
from asr_server.live.machine.events import (
    Audio,
    CancelRequest,
    Configure,
    Detection,
    EndOfTurnLikely,
    EndOfTurnRules,
    Final,
    Flush,
    GetCheckpoint,
    Partial,
    Reset,
    ResetDone,
    Transcribe,
    TurnConfig,
)
from asr_server.live.machine.session import LiveMachine
from asr_server.live.outbox import Outgoing

SETTINGS = settings(max_examples=60, deadline=None, derandomize=True)
_FRAME_BYTES = 2 * 512  # of the voice detector
RULES = TurnConfig()
ID = "live_0123abcd." + 22 * "x"


class Server:
    """A machine with its handover: events in, messages out in the figures of the session, as late as told."""

    def __init__(self, rng, delay, longest_s, options, rate_hz):
        begin = options.begin
        rules = RULES
        if begin is not None and begin.configured is not None:
            manual = begin.configured.manual
            rules = TurnConfig(Detection.MANUAL if manual else Detection.VOICE, context=begin.configured.hotwords)
        changes = {"max_utterance_samples": longest_s * SAMPLE_RATE, "input_rate_hz": rate_hz, "rules": rules}
        self.machine = LiveMachine(config(**changes))
        self.handover = SessionHandover(ID, options, rate_hz)
        self.messages = [self.handover.newest]
        self._rng, self._delay = rng, delay
        self._pending = []
        self.contexts = {}

    def send(self, frame):
        if isinstance(frame, bytes):
            self._feed(Audio(frame))
        else:
            self._feed(frame, counted=True)
        while self._pending and self._rng.random() >= self._delay:
            self._answer()

    def finish(self):
        while self._pending:
            self._answer()

    def _answer(self):
        request = self._pending.pop(0)
        self._feed(result_for(request.ticket, recognize(request.audio, request.prefix)))

    def _feed(self, event, *, counted=False):
        actions = receive(self.machine, event)
        for action in actions:
            if isinstance(action, Transcribe):
                self._pending.append(action)
                self.contexts[action.utterance] = action.context
            elif isinstance(action, CancelRequest):
                self._pending = [each for each in self._pending if each.ticket != action.ticket]
            elif (shown := self.handover.shown(action)) is not None:
                self.messages.append(self._in_session(shown))
        issued = self.handover.on_processed(actions, event, self.machine, counted=counted)
        self.messages += [issued.continuation] if issued is not None else []

    def _in_session(self, message):
        """For a text its kind, number, words and times; for other messages their class."""
        if not isinstance(message, Partial | Final):
            return type(message).__name__, message
        begin = self.handover.begin
        times = (message.start_samples + begin.samples, message.end_samples + begin.samples)
        final = isinstance(message, Final)
        committed = message.text if final else message.committed
        context = self.contexts.get(message.utterance, "")
        ending = message.ending if final else None
        return Text(message.utterance + begin.utterances, message.text, committed, times, ending, context)


class Text:
    """A partial or final of a session: `times` in samples; `ending` is None for a partial."""

    def __init__(self, number, text, committed, times, ending, context):
        self.number, self.text, self.committed, self.times = number, text, committed, times
        self.ending, self.context = ending, context


class Client:
    """Carries its session to another server with a chance of `moves` at every step."""

    def __init__(self, rng, *, delay=0.0, moves=0.0, longest_s=4, rate_hz=SAMPLE_RATE, server=Server):
        self._rng, self._moves = rng, moves
        self._make = lambda options: server(rng, delay, longest_s, options, rate_hz)
        self._sent, self._audio, self._actions = [], b"", []  # actions: position and event
        self._server = self._make(HandoverOptions(RULES))
        self._newest = None
        self.texts, self.finals, self.answers = [], {}, []
        self.moved = 0
        self._read(1.0)

    def send(self, frame):
        self._keep(frame)
        self._server.send(frame)
        self._read(0.8)
        while self._rng.random() < self._moves:
            self._move()

    def finish(self):
        self._server.finish()
        self._read(1.0)

    def _keep(self, frame):
        if isinstance(frame, bytes):
            self._audio += frame
        else:
            self._actions.append((len(self._audio), frame))

    def _read(self, share):
        while self._server.messages and self._rng.random() < share:
            message = self._server.messages.pop(0)
            if isinstance(message, tuple):
                self.answers.append(message[0])
            elif not isinstance(message, Text):
                assert self._newest is None or message.received_bytes >= self._newest.received_bytes
                assert self._newest is None or message.actions >= self._newest.actions
                self._newest = message
            else:
                self.texts.append(message)
                if message.ending is not None:
                    assert message.number not in self.finals
                    self.finals[message.number] = message

    def _move(self):
        self.moved += 1
        received = max(self.finals, default=0)
        shown = ShownUtterance()
        if self.texts and (last := self.texts[-1]).number > received:
            shown = ShownUtterance(last.number, last.committed, last.times[1] / SAMPLE_RATE)
        begin, self._newest = self._newest, None
        self._server = self._make(HandoverOptions(RULES, begin, shown, received))
        self._read(1.0)
        at = begin.received_bytes
        for position, event in self._actions[begin.actions :]:
            self._resend(at, position)
            at = max(at, position)
            self._server.send(event)
        self._resend(at, len(self._audio))
        self._read(0.5)

    def _resend(self, start, end):
        while start < end:
            size = self._rng.choice([3, 1_000, 30_000])
            self._server.send(self._audio[start : min(end, start + size)])
            start += size


def frames_of(rng, sentences, *, acts, aligned=True, rate_hz=SAMPLE_RATE):
    """Audio in pieces of any size, with actions among them; `aligned`: between two frames of the detector."""
    parts = []
    for _ in range(sentences):
        parts.append(silence(rng.choice([40, 200, 900, 6_000])))
        parts.append(speech([rng.randrange(10) for _ in range(rng.randrange(1, 8))]))
    pcm = np.concatenate([*parts, silence(900)])
    if rate_hz != SAMPLE_RATE:
        pcm = np.repeat(pcm, rate_hz // SAMPLE_RATE)
    data = pcm.astype("<i2").tobytes()
    frames, at = [], 0
    step = _FRAME_BYTES * rate_hz // SAMPLE_RATE
    while at < len(data):
        size = rng.choice([3, 500, 1_024, 4_096, 30_001])
        action = None
        if acts and rng.random() < 0.08:
            rules = TurnConfig(rng.choice([Detection.VOICE] * 3 + [Detection.MANUAL]), context=str(rng.randrange(9)))
            action = rng.choice([Flush(), Reset(), GetCheckpoint(), Configure(rules)])
        if action is not None and aligned:
            size += -(at + size) % step
        frames += [data[at : at + size], *([action] * rng.choice([1, 1, 2]) if action is not None else [])]
        at += size
    return [*frames, Flush()]


def talk(frames, client):
    """Send all frames, and wait for all finals."""
    for frame in frames:
        client.send(frame)
    client.finish()
    return client


def _kept(client):
    return [(n, m.text, m.ending, m.context, m.times) for n, m in sorted(client.finals.items())]


CASES = {"seed": st.integers(0, 2**32), "sentences": st.integers(1, 6), "delay": st.sampled_from([0.0, 0.7])}


def _both(seed, frames, delay, longest_s, **more):
    calm = talk(frames, Client(random.Random(seed), longest_s=longest_s, **more))
    return calm, talk(frames, Client(random.Random(seed), delay=delay, moves=0.2, longest_s=longest_s, **more))


@SETTINGS
@given(**CASES, acts=st.booleans())
def test_a_session_over_many_servers_has_the_finals_of_one(seed, sentences, delay, acts):
    """Numbers, words, endings, hotwords and times, wherever it is cut and whatever the client had read by then."""
    calm, moved = _both(seed, frames_of(random.Random(seed), sentences, acts=acts), delay, 30 if acts else 4)
    assert _kept(moved) == _kept(calm)


@SETTINGS
@given(**CASES)
def test_actions_between_two_halves_of_a_sample_are_counted_to_the_byte(seed, sentences, delay):
    """Every flush has one final, in order, and the last byte is where it was."""
    frames = frames_of(random.Random(seed), sentences, acts=True, aligned=False)
    calm, moved = _both(seed, frames, delay, 30)
    assert list(moved.finals) == list(calm.finals)
    assert [m.ending for m in moved.finals.values()] == [m.ending for m in calm.finals.values()]


@SETTINGS
@given(**CASES)
def test_positions_are_exact_at_other_rates(seed, sentences, delay):
    """Bytes go on at the rate of the client's audio."""
    frames = frames_of(random.Random(seed), sentences, acts=False, rate_hz=2 * SAMPLE_RATE)
    calm, moved = _both(seed, frames, delay, 30, rate_hz=2 * SAMPLE_RATE)
    assert _kept(moved) == _kept(calm)


@SETTINGS
@given(**CASES)
def test_a_committed_word_is_never_taken_back_and_the_shown_audio_never_shrinks(seed, sentences, delay):
    """Within an utterance, over all servers."""
    client = talk(
        frames_of(random.Random(seed), sentences, acts=False), Client(random.Random(seed), delay=delay, moves=0.2)
    )
    committed, reached = {}, {}
    for text in client.texts:
        assert text.text.startswith(committed.get(text.number, ""))
        assert text.committed.startswith(committed.get(text.number, ""))
        if text.ending is None:
            assert text.times[1] >= reached.get(text.number, 0)
        committed[text.number], reached[text.number] = text.committed, text.times[1]


@pytest.mark.parametrize("delay", [0.0, 0.9])
def test_silence_is_not_kept_for_ever(delay):
    """A client needs at most five seconds of it, and of speech the open utterance."""
    client = Client(random.Random(1), delay=delay)
    for part in [silence(60_000), speech([1, 2, 3]), silence(30_000)]:
        for piece in np.array_split(part.astype("<i2"), 100):
            client.send(piece.tobytes())
            client._read(1.0)
    client.finish()
    assert len(client._audio) - client._newest.received_bytes <= 5.5 * 2 * SAMPLE_RATE
    assert client._newest.utterances == 1


def test_words_that_another_server_hears_elsewhere_are_neither_lost_nor_doubled():
    """What the client was shown stays; what the final does not reach is not said again in the next utterance."""
    options = HandoverOptions(
        RULES, SessionHandover(ID, HandoverOptions(RULES), SAMPLE_RATE).newest, ShownUtterance(1, "one two three")
    )
    handover = SessionHandover(ID, options, SAMPLE_RATE)
    partial = handover.shown(Partial(1, "one too", " there", "English", 0, 100))
    assert (partial.committed, partial.text) == ("one two three", "one two three")
    final = handover.shown(_final(1, "one two"))
    assert final.text == "one two three"
    assert handover.shown(_final(2, "three four")).text == "four"


def test_what_the_client_has_is_not_sent_again():
    """A client may have finals behind its newest continuation: its audio is transcribed again, and nothing is sent."""
    begin = SessionHandover(ID, HandoverOptions(RULES), SAMPLE_RATE).newest
    handover = SessionHandover(ID, HandoverOptions(RULES, begin, ShownUtterance(3, "four"), 2), SAMPLE_RATE)
    for number in (1, 2):
        assert handover.shown(Partial(number, "one", "", "English", 0, 1)) is None
        assert handover.shown(_final(number, "one")) is None
    assert handover.shown(_final(3, "for five")).text == "four five"


def test_a_discarded_utterance_leaves_nothing_behind():
    """Words that were shown of it do not come into the next one."""
    begin = SessionHandover(ID, HandoverOptions(RULES), SAMPLE_RATE).newest
    handover = SessionHandover(ID, HandoverOptions(RULES, begin, ShownUtterance(1, "one two")), SAMPLE_RATE)
    handover.shown(ResetDone(1))
    assert handover.shown(_final(1, "five")).text == "five"


def test_a_reset_that_is_repeated_leaves_what_was_shown_after_it():
    """The client has sent it before the utterance of which it was shown words."""
    begin = SessionHandover(ID, HandoverOptions(RULES), SAMPLE_RATE).newest
    handover = SessionHandover(ID, HandoverOptions(RULES, begin, ShownUtterance(2, "one two")), SAMPLE_RATE)
    handover.shown(ResetDone(1))
    assert handover.shown(_final(2, "six")).text.startswith("one two")


def test_what_was_shown_of_a_discarded_utterance_does_not_begin_the_next_one():
    """Numbers are not used twice, so the utterance behind the last final may be another one than the next number."""
    begin = replace(SessionHandover(ID, HandoverOptions(RULES), SAMPLE_RATE).newest, utterances=4)
    handover = SessionHandover(ID, HandoverOptions(RULES, begin, ShownUtterance(4, "one two", 9.0), 3), SAMPLE_RATE)
    assert handover.shown(Partial(1, "five", "", "English", 0, 100)).text == "five"


def test_labels_that_were_given_stay_and_new_letters_follow():
    """Also after the next move: the continuation knows every letter that was sent."""
    begin = SessionHandover(ID, HandoverOptions(RULES), SAMPLE_RATE).newest
    runs = ({"speaker": "A", "text": "one"}, {"speaker": "C", "text": " two"})
    handover = SessionHandover(ID, HandoverOptions(RULES, begin, ShownUtterance(1, "one two", 1.0, runs)), 16_000)
    assert handover.relabelled().first_speaker == 3
    heard = UtteranceSpeakers(1, (SpeakerRun("D", "one two three"),))
    labelled = handover.labelled(heard, "one two three")
    assert labelled.runs == (SpeakerRun("A", "one"), SpeakerRun("C", " two"), SpeakerRun("D", " three"))
    assert handover.labelled(heard).runs == labelled.runs
    assert handover.relabelled().first_speaker == 4
    assert handover.relabelled() is None


def test_a_continuation_says_what_the_client_has_configured_and_not_what_its_query_says():
    """So that a long text of the query is not carried twice."""
    rules = TurnConfig(language="German", context="Müller")
    handover = SessionHandover(ID, HandoverOptions(rules), SAMPLE_RATE)
    machine = LiveMachine(config(rules=rules))
    assert handover.continuation(machine).configured is None
    machine.receive(Configure(TurnConfig(Detection.MANUAL, "German", "Maier")))
    assert handover.continuation(machine).configured == TurnSettings("German", "Maier", manual=True)


@pytest.mark.parametrize(("discards_half", "place"), [(True, 7), (False, 6)])
def test_half_a_sample_is_discarded_by_a_reset_and_waits_behind_a_flush(discards_half, place):
    """After seven bytes and three samples: the next sample begins with the next byte, or with the seventh."""
    positions = BytePositions(SAMPLE_RATE)
    positions.on_stream_end(3, 7, discards_half=discards_half)
    assert (positions.of(3), positions.of(10)) == (place, place + 14)


def test_a_place_that_is_no_longer_known_is_not_guessed():
    """After more ends of streams within one utterance than are kept."""
    positions = BytePositions(SAMPLE_RATE)
    received = 0
    for sample in range(1_000):
        received += 3
        positions.on_stream_end(sample, received, discards_half=True)
    assert positions.of(999) == received
    assert positions.of(0) is None


def _final(number, text):
    return Final(number, text, "English", 0, SAMPLE_RATE, None)


def test_the_client_of_the_tests_moves():
    """Otherwise they would show nothing."""
    assert talk(frames_of(random.Random(3), 3, acts=True), Client(random.Random(3), moves=0.2)).moved >= 3


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        (TurnConfig(), "pause"),
        (TurnConfig(end_of_turn=EndOfTurnRules()), "semantic"),
        (TurnConfig(Detection.MANUAL), "manual"),
    ],
)
def test_the_next_server_is_told_who_ends_an_utterance(rules, told):
    """The state has it in the words of a query."""
    handover = SessionHandover(ID, HandoverOptions(TurnConfig(language="German")), 16_000)
    assert handover._configured(rules).endpointing == told


def test_partials_of_less_audio_than_the_client_has_seen_are_not_sent():
    """By the time of the session: this server's part of it began ten seconds later."""
    begin = replace(SessionHandover(ID, HandoverOptions(RULES), SAMPLE_RATE).newest, samples=160_000, utterances=1)
    handover = SessionHandover(ID, HandoverOptions(RULES, begin, ShownUtterance(2, "one", 12.0), 1), SAMPLE_RATE)
    assert handover.shown(Partial(1, "one", "", "English", 0, 24_000)) is None
    assert handover.shown(Partial(1, "one", " two", "English", 0, 40_000)).text == "one two"


def test_a_likely_end_of_a_turn_has_the_number_and_the_time_of_the_whole():
    """Its probability stays."""
    likely = route.render(Outgoing(EndOfTurnLikely(1, 0.875, 24_000)))
    assert likely == {"type": "turn.likely", "utterance": 1, "probability": 0.875, "end": 1.5}
    told = Offset(utterances=3, seconds=10.25).applied(likely)
    assert told == {"type": "turn.likely", "utterance": 4, "probability": 0.875, "end": 11.75}
