"""Invariants of a conversation, over a real live session with random speech, cuts, failures and orders of events."""

import json
import random

import openai.types.realtime
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.conftest import raises
from asr_server.core.errors import ShuttingDown
from asr_server.core.transcript import Token
from asr_server.engine.catalog import Catalog
from asr_server.features.realtime.config import ServerDefaults
from asr_server.features.realtime.conversation import Conversation
from asr_server.live.machine import events as live
from asr_server.live.machine.conftest import Run, silence, speech
from asr_server.live.machine.events import Ending, SessionError, UtteranceEnded, UtteranceStarted
from asr_server.live.machine.session import LiveMachine
from asr_server.live.machine.utterance import LiveMachineConfig

DEFAULTS = ServerDefaults(Catalog("demo"), LiveMachineConfig().rules)
FRAME = pydantic.TypeAdapter(openai.types.realtime.RealtimeServerEvent)
TRANSCRIPTION = "conversation.item.input_audio_transcription"
COMMITTED, DELTA = "input_audio_buffer.committed", f"{TRANSCRIPTION}.delta"
COMPLETED, FAILED = f"{TRANSCRIPTION}.completed", f"{TRANSCRIPTION}.failed"
STARTED, STOPPED = "input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped"
ADDED, DONE = "conversation.item.added", "conversation.item.done"
MANUAL = {"type": "transcription", "audio": {"input": {"turn_detection": None}}}
VOICE = {"type": "transcription", "audio": {"input": {"turn_detection": {"type": "server_vad"}}}}


class Talk(Run):
    """A live machine, and a conversation that hears what it says, as the socket's writer does."""

    def __init__(self, rng, *, manual, failures):
        self.session_config = DEFAULTS.updated(DEFAULTS.initial(), MANUAL if manual else VOICE)
        self.conversation = Conversation(self.session_config, "sess_1", 5)
        self.events = [self.conversation.created()]
        limits = {"max_utterance_samples": 4 * SAMPLE_RATE, "max_pause_samples": 12_000, "margin_samples": 3_200}
        config = LiveMachineConfig(rules=DEFAULTS.rules_of(self.session_config), **limits)
        super().__init__(LiveMachine(config), rng, delay=0.6, failures=failures)

    def update(self, patch):
        self.session_config = DEFAULTS.updated(self.session_config, patch)
        self.events.append(self.conversation.updated(self.session_config))
        self.feed(live.Configure(DEFAULTS.rules_of(self.session_config)))

    def told(self, kind):
        return [event for event in self.events if event["type"] == kind]

    def _perform(self, actions):
        super()._perform(actions)
        for action in actions:
            if not isinstance(action, live.Transcribe | live.CancelRequest):
                self.events += self.conversation.on_message(action)


def _item(event):
    return event.get("item_id") or event.get("item", {}).get("id")


@st.composite
def _talks(draw):
    rng = random.Random(draw(st.integers(0, 2**32)))
    talk = Talk(rng, manual=draw(st.booleans()), failures=draw(st.sampled_from([0.0, 0.2])))
    for _ in range(draw(st.integers(1, 6))):
        words = speech([rng.randrange(10) for _ in range(rng.randrange(1, 30))])
        for pcm in (words, silence(rng.choice([40, 300, 900]))):
            data = pcm.astype("<i2").tobytes()
            for at in range(0, len(data), 8_000):
                talk.feed(live.Audio(data[at : at + 8_000]))
                chance = rng.random()
                if chance < 0.04:
                    talk.feed(rng.choice([live.Flush(), live.Reset()]))
                elif chance < 0.06:
                    talk.update(rng.choice([MANUAL, VOICE]))
    talk.feed(live.Flush())
    talk.finish(close=False)
    return talk


@settings(max_examples=80, deadline=None, derandomize=True)
@given(_talks())
def test_whatever_is_said_the_events_are_those_of_the_contract(talk):
    """A turn has its events in their order, and deltas that join to its transcript, however often it was cut; items are
    a chain; all are of the installed client's types; and nothing is kept of turns that are over."""
    committed = talk.told(COMMITTED)
    for item in {_item(event) for event in committed}:
        own = [e["type"] for e in talk.events if _item(e) == item]
        kinds = [kind for kind in own if kind != DELTA]
        assert kinds[-1] == own[-1]
        assert own[-1] in (COMPLETED, FAILED)
        assert kinds[:-1] in ([COMMITTED, ADDED, DONE], [STARTED, STOPPED, COMMITTED, ADDED, DONE])
    ended = [_item(event) for event in talk.events if event["type"] in (COMPLETED, FAILED)]
    assert ended == [_item(event) for event in committed]
    for done in talk.told(COMPLETED):
        said = "".join(e["delta"] for e in talk.told(DELTA) if e["item_id"] == done["item_id"])
        assert said == done["transcript"]
    assert [e["previous_item_id"] for e in committed] == [None, *(e["item_id"] for e in committed)][: len(committed)]
    for names in ([e["item_id"] for e in committed], [e["event_id"] for e in talk.events]):
        assert len(set(names)) == len(names)
    for event in talk.events:
        assert FRAME.validate_python(json.loads(json.dumps(event))).type == event["type"]
        assert event.get("content_index", 0) == 0
    assert not talk.conversation.turn_of


def test_only_committed_items_fail_when_the_server_ends():
    """Each once, with the error; a turn that is still open has no item that a client could wait for."""
    conversation = Conversation(DEFAULTS.initial(), "sess_1", 5)
    ended = [UtteranceStarted(1, 0), UtteranceEnded(1, 0, 16_000, Ending.PAUSE), UtteranceStarted(2, 20_000)]
    events = [event for each in ended for event in conversation.on_message(each)]
    (item,) = [event["item_id"] for event in events if event["type"] == COMMITTED]
    failed = conversation.unfinished(ShuttingDown("The server is shutting down."))
    told = [(event["type"], event["item_id"], event["error"]["code"]) for event in failed]
    assert told == [(FAILED, item, "shutting_down")]


def _cut_turn(conversation, *, then=()):
    """Commit a turn that was cut once. Return its item, and a function that gives its finals and returns the events.

    `then`: messages between the commit and the finals.
    """
    parts = [UtteranceStarted(1, 0), UtteranceEnded(1, 0, 16_000, Ending.CUT), UtteranceStarted(2, 16_000)]
    messages = [*parts, UtteranceEnded(2, 16_000, 40_000, Ending.FLUSH), *then]
    (item, *_) = [_item(event) for message in messages for event in conversation.on_message(message)]

    def finals(*errors):
        made = [_final(*spoken) for spoken in zip((1, 2), ("one", "two"), errors, strict=True)]
        return [event for final in made for event in conversation.on_message(final)]

    return item, finals


def _final(utterance, text, error=None):
    return live.Final(utterance, text, "English", 0, 1, Ending.FLUSH, (), (Token(text.encode(), -0.5),), error)


def _by_commit(**changes):
    config = DEFAULTS.updated(DEFAULTS.initial(), MANUAL | changes)
    return config, Conversation(config, "sess_1", 5)


LOGPROBS = {"include": ["item.input_audio_transcription.logprobs"]}


def test_a_turn_that_was_cut_has_the_tokens_languages_and_seconds_of_all_its_parts():
    _, conversation = _by_commit(**LOGPROBS)
    (completed,) = [event for event in _cut_turn(conversation)[1](None, None) if event["type"] == COMPLETED]
    assert (completed["transcript"], completed["usage"]["seconds"]) == ("one two", 2.5)
    assert [token["token"] for token in completed["logprobs"]] == ["one", "two"]
    assert completed["languages"] == [{"code": "en"}]


def test_a_commit_after_a_cut_in_a_pause_commits_the_turn_that_was_cut():
    """No utterance is open then, so an empty one answers the commit."""
    _, conversation = _by_commit()
    cut = [
        UtteranceStarted(1, 0),
        UtteranceEnded(1, 0, 16_000, Ending.CUT),
        UtteranceEnded(2, 90_000, 90_000, Ending.FLUSH),
    ]
    events = [event for each in (*cut, _final(1, "one"), _final(2, "")) for event in conversation.on_message(each)]
    assert [(one["transcript"], one["usage"]["seconds"]) for one in events if one["type"] == COMPLETED] == [("one", 1)]


@pytest.mark.parametrize("second", [None, SessionError("later", "It failed again.", 2)])
def test_a_turn_fails_with_the_error_of_the_part_that_failed_first(second):
    _, conversation = _by_commit()
    events = _cut_turn(conversation)[1](SessionError("transcription_failed", "It failed.", 1), second)
    assert [event["error"]["code"] for event in events if event["type"] == FAILED] == ["transcription_failed"]
    assert COMPLETED not in [event["type"] for event in events]


def test_a_configuration_counts_for_the_turns_that_begin_under_it():
    """Of two that were asked for, in their order; a turn keeps that with which it began."""
    config, conversation = _by_commit()
    conversation.updated(DEFAULTS.updated(config, MANUAL | LOGPROBS))
    conversation.updated(config)
    rules = DEFAULTS.rules_of(config)
    conversation.on_message(live.Configured(rules))
    events = _cut_turn(conversation, then=[live.Configured(rules)])[1](None, None)
    assert ["logprobs" in event for event in events if event["type"] == COMPLETED] == [True]
    events = _cut_turn(conversation)[1](None, None)
    assert ["logprobs" in event for event in events if event["type"] == COMPLETED] == [False]


def test_the_transcript_of_an_item_that_was_deleted_still_comes():
    _, conversation = _by_commit()
    identity, finals = _cut_turn(conversation)
    conversation.deleted(identity)
    assert [event["item_id"] for event in finals(None, None) if event["type"] == COMPLETED] == [identity]
    with raises("item_not_found"):
        conversation.retrieved(identity)
