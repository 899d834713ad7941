"""Turns: their order, their words, by commit and by voice detection, at any rate and in any format."""

import itertools
import json
import time

import numpy as np
import pytest
import soxr

from asr_server.audio.g711 import Companding
from E2Etest.drive import recordings
from E2Etest.realtime.session import (
    ADDED,
    COMMITTED,
    COMPLETED,
    DELTA,
    DONE,
    RATE,
    STARTED,
    STOPPED,
    kinds,
    open_session,
    speech,
    texts,
)

pytestmark = [pytest.mark.websocket, pytest.mark.demo_server]

TURN = [COMMITTED, ADDED, DONE, COMPLETED]


@pytest.mark.parametrize("size", [960, 4_800, 10 << 20])
def test_a_committed_turn_is_one_item_with_its_words(realtime_server, said, size):
    """In 20 ms, 100 ms and one large event: the order of the contract, and deltas that are the transcript."""
    with open_session(realtime_server) as talk:
        talk.update(turn_detection=None)
        talk.say(speech(), size)
        talk.commit()
        events = talk.until(COMPLETED)
        assert kinds(events) == TURN
        assert len({event.item_id for event in events if hasattr(event, "item_id")}) == 1
        ((joined, transcript),) = texts(events).values()
        assert joined == transcript
        assert recordings.word_errors(said.split(), transcript.split()) <= 1
        assert events[-1].usage.type == "duration"
        assert events[-1].usage.seconds == pytest.approx(len(speech()) / 2 / RATE, abs=0.1)
        assert [language.code for language in events[-1].languages] == ["en"]


def test_less_than_a_tenth_of_a_second_is_not_committed(realtime_server, said):
    """An error with the event's id; the audio stays, and counts for the next commit. What was cleared does not."""
    with open_session(realtime_server) as talk:
        talk.update(turn_detection=None)
        talk.commit("mine")
        error = talk.only("error").error
        assert (error.code, error.event_id) == ("input_audio_buffer_commit_empty", "mine")
        talk.say(speech()[:4_000])
        talk.commit()
        assert talk.only("error").error.code == "input_audio_buffer_commit_empty"
        talk.say(speech()[4_000:])
        talk.connection.input_audio_buffer.clear()
        talk.until("input_audio_buffer.cleared")
        talk.commit()
        assert talk.only("error").error.code == "input_audio_buffer_commit_empty"
        talk.say(speech())
        talk.commit()
        events = talk.until(COMPLETED)
        assert recordings.word_errors(said.split(), events[-1].transcript.split()) <= 1
        assert next(e for e in events if e.type == COMMITTED).previous_item_id is None


def test_what_is_cleared_is_never_heard_of_again(realtime_server, said):
    """A turn that was cut already, and then cleared: none of its words come, and the next turn is the first item."""
    with open_session(realtime_server) as talk:
        talk.update(turn_detection=None)
        talk.say(speech() * 2)
        talk.connection.input_audio_buffer.clear()
        before = talk.until("input_audio_buffer.cleared")
        talk.say(speech())
        talk.commit()
        events = talk.until(COMPLETED)
        assert kinds(events) == TURN
        assert {e.item_id for e in before if hasattr(e, "item_id")}.isdisjoint(texts(events))
        assert recordings.word_errors(said.split(), events[-1].transcript.split()) <= 1


def _spoken(realtime_server, audio, faster):
    """Sent so many times faster than it was spoken: the events up to the second transcript."""
    piece_s = 0.05
    with open_session(realtime_server) as talk:
        begin_s = time.monotonic()
        size = int(RATE * piece_s) * 2
        for count, at in enumerate(range(0, len(audio), size)):
            time.sleep(max(0.0, begin_s + count * piece_s / faster - time.monotonic()))
            talk.say(audio[at : at + size], size)
        return talk.until(COMPLETED, 2)


def test_two_sentences_are_two_turns_at_any_speed(realtime_server, said):
    """Whole milliseconds, a chain of items, deltas that are the transcript; the same boundaries at 4x and 20x."""
    runs = [_spoken(realtime_server, speech(1.0) * 2, faster) for faster in (4, 20)]
    boundaries = []
    for events in runs:
        started = [e for e in events if e.type == STARTED]
        stopped = [e for e in events if e.type == STOPPED]
        committed = [e for e in events if e.type == COMMITTED]
        assert [e.item_id for e in started] == [e.item_id for e in stopped] == [e.item_id for e in committed]
        assert [e.previous_item_id for e in committed] == [None, committed[0].item_id]
        assert all(a.audio_start_ms < b.audio_end_ms for a, b in zip(started, stopped, strict=True))
        for item in (e.item_id for e in committed):
            order = [e.type for e in events if getattr(e, "item_id", None) == item or _item_of(e) == item]
            assert [kind for kind, _ in itertools.groupby(kind for kind in order if "delta" not in kind)] == [
                STARTED,
                STOPPED,
                *TURN,
            ]
        for joined, transcript in texts(events).values():
            assert joined == transcript
            assert recordings.word_errors(said.split(), transcript.split()) <= 1
        boundaries.append([(a.audio_start_ms, b.audio_end_ms) for a, b in zip(started, stopped, strict=True)])
    assert boundaries[0] == boundaries[1]


def test_certain_words_come_while_the_speaker_speaks(realtime_server):
    """At twice real time: deltas before the turn is over."""
    events = _spoken(realtime_server, speech(1.0) * 2, 2)
    early = [e.delta for e in itertools.takewhile(lambda e: e.type != STOPPED, events) if e.type == DELTA]
    assert early
    ((joined, transcript), _) = texts(events).values()
    assert joined == transcript
    assert transcript.startswith("".join(early))


def _item_of(event):
    return getattr(getattr(event, "item", None), "id", None)


def _input(**heard):
    return {"type": "transcription", "audio": {"input": heard}}


def test_telephone_audio_gives_the_words(realtime_server, said):
    """The formats are mu-law, A-law and PCM at 8 kHz. The rate may change within a session."""
    pcm = soxr.resample(recordings.samples(), 16_000, 8_000).astype(np.int16)
    sent = {
        "audio/pcm": ({"type": "audio/pcm", "rate": 8_000}, pcm.tobytes()),
        "audio/pcmu": ({"type": "audio/pcmu"}, recordings.companded(pcm, Companding.MU)),
        "audio/pcma": ({"type": "audio/pcma"}, recordings.companded(pcm, Companding.A)),
    }
    heard = {}
    with open_session(realtime_server) as talk:
        talk.update(turn_detection=None)
        for name, (shape, audio) in sent.items():
            # Another rate than 24 kHz is no value of the client's types: its frame is not checked against them.
            talk.send_raw(json.dumps({"type": "session.update", "session": _input(format=shape)}))
            assert json.loads(talk.connection.recv_bytes())["session"]["audio"]["input"]["format"] == shape
            talk.say(audio, 800)
            talk.commit()
            heard[name] = talk.until(COMPLETED)[-1]
            assert heard[name].usage.seconds == pytest.approx(len(pcm) / 8_000, abs=0.1)
    words = said.split()
    for event in heard.values():
        # "on" and "off" differ above 4 kHz.
        assert recordings.word_errors(words, event.transcript.split()) <= len(words) // 3


def test_a_commit_with_voice_detection_ends_the_turn_at_once(realtime_server, said):
    """In the middle of a sentence, and again when nobody speaks: then the item is empty."""
    with open_session(realtime_server) as talk:
        talk.say(speech())
        talk.commit()
        events = talk.until(COMPLETED)
        assert kinds(events) == [STARTED, STOPPED, *TURN]
        assert recordings.word_errors(said.split(), events[-1].transcript.split()) <= 1
        talk.say(bytes(RATE))
        talk.commit()
        events = talk.until(COMPLETED)
        assert kinds(events) == TURN
        assert events[-1].transcript == ""


def test_a_session_may_change_who_ends_its_turns(realtime_server, said):
    """From the voice detector to the caller in the middle of a sentence, and back: the next audio obeys."""
    audio = speech()
    with open_session(realtime_server) as talk:
        talk.say(audio[: len(audio) // 2])
        first = talk.until(STARTED)[-1]
        talk.connection.session.update(session={"type": "transcription", "audio": {"input": {"turn_detection": None}}})
        talk.until("session.updated")
        talk.say(audio[len(audio) // 2 :] + bytes(2 * RATE))
        talk.commit()
        events = talk.until(COMPLETED)
        assert kinds(events) == [STOPPED, *TURN]
        assert events[-1].item_id == first.item_id
        assert recordings.word_errors(said.split(), events[-1].transcript.split()) <= 1
        talk.say(audio)
        detection = {"turn_detection": {"type": "server_vad"}}
        talk.connection.session.update(session={"type": "transcription", "audio": {"input": detection}})
        events = talk.until("session.updated")[:-1]  # words may have been committed before
        talk.say(bytes(2 * RATE))
        assert kinds(events + talk.until(COMPLETED)) == TURN


def test_semantic_detection_waits_longer_where_no_sentence_ends(realtime_server):
    """The model writes no full stops: a pause of 1 s ends a turn by server_vad, and none with eagerness high (2 s)."""
    words = speech()[: int(1.4 * RATE) * 2]
    turns = {}
    for shape in ({"type": "server_vad"}, {"type": "semantic_vad", "eagerness": "high"}):
        with open_session(realtime_server) as talk:
            talk.update(turn_detection=shape)
            talk.say(words + bytes(2 * RATE) + words + bytes(5 * RATE))
            talk.until(COMPLETED, 2 if shape["type"] == "server_vad" else 1)
            talk.say(bytes(5 * RATE))
            talk.commit()
            events = talk.events + talk.until(COMPLETED)
            turns[shape["type"]] = sum(event.type == STOPPED for event in events)
    assert turns == {"server_vad": 2, "semantic_vad": 1}


def test_items_can_be_looked_at_and_forgotten(realtime_server):
    """An item shows its transcript; once deleted it is unknown, and the chain goes on behind what is left."""
    with open_session(realtime_server) as talk:
        talk.update(turn_detection=None)
        items = []
        for _ in range(2):
            talk.say(speech())
            talk.commit()
            items.append(talk.until(COMPLETED)[-1])
        talk.connection.conversation.item.retrieve(item_id=items[1].item_id)
        item = talk.only("conversation.item.retrieved").item
        assert item.content[0].transcript == items[1].transcript
        talk.connection.conversation.item.delete(item_id=items[1].item_id)
        assert talk.only("conversation.item.deleted").item_id == items[1].item_id
        talk.connection.conversation.item.retrieve(item_id=items[1].item_id)
        assert talk.only("error").error.code == "item_not_found"
        talk.say(speech())
        talk.commit()
        assert talk.until(COMMITTED)[-1].previous_item_id == items[0].item_id


def test_log_probabilities_come_when_they_are_asked_for(realtime_server):
    """The tokens' bytes write the transcript; without `include` there are none."""
    with open_session(realtime_server) as talk:
        for include in ([], ["item.input_audio_transcription.logprobs"]):
            talk.update(turn_detection=None, include=include)
            talk.say(speech())
            talk.commit()
            done = talk.until(COMPLETED)[-1]
            if not include:
                assert done.logprobs is None
        written = bytes(b for entry in done.logprobs for b in entry.bytes).decode()
        assert written.strip() == done.transcript
        assert all(entry.logprob <= 0 for entry in done.logprobs)


def test_without_transcription_turns_are_found_and_nothing_is_written(realtime_server):
    """`transcription` null: the item is committed, no transcript follows; the next turn has one again."""
    with open_session(realtime_server) as talk:
        talk.update(turn_detection=None, transcription=None)
        talk.say(speech())
        talk.commit()
        talk.until(DONE)
        talk.update(transcription={"model": "whisper-1"})
        talk.say(speech())
        talk.commit()
        assert kinds(talk.until(COMPLETED)) == TURN
