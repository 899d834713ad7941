"""The messages of `WS /ws/speech`, in both directions."""

from __future__ import annotations

import json

import pytest

from asr_server.core.conftest import raises
from asr_server.core.errors import InvalidInput
from asr_server.features.speech_output import speech_socket
from asr_server.features.speech_output.encoding.formats import SpeechFormat
from asr_server.features.speech_output.events import (
    Flushed,
    SentenceBegun,
    SentenceEnded,
    SessionDone,
    SessionStarted,
    SpeechCancelled,
)
from asr_server.features.speech_output.speech_socket import MAX_MESSAGE_CHARS, parse


def test_samples_are_the_default():
    """Unlike a request, whose default is OpenAI's."""
    assert parse('{"type": "start"}').response_format is SpeechFormat.PCM


@pytest.mark.parametrize(
    "frame",
    [
        None,
        "",
        "[]",
        '{"type": "text"',
        "[" * 100_000,
        json.dumps({"type": "text", "text": "x" * MAX_MESSAGE_CHARS}),
    ],
)
def test_what_is_no_message_is_malformed(frame):
    """Binary frames, broken JSON, and messages that are too long."""
    with raises("malformed_body"):
        parse(frame)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({}, "type"),
        ({"type": ["text"]}, "type"),
        ({"type": "speak"}, "type"),
        ({"type": "text"}, "text"),
        ({"type": "text", "text": 5}, "text"),
        ({"type": "text", "text": "a\x00b"}, "text"),
        ({"type": "text", "text": "\ud83d"}, "text"),
        ({"type": "start", "speed": 0}, "speed"),
        ({"type": "start", "response_format": "mp4"}, "response_format"),
        ({"type": "start", "pause_ms": -1}, "pause_ms"),
    ],
)
def test_the_field_at_fault_is_named(message, param):
    """Of unknown types, missing and wrong values; a half of a character is no text."""
    with raises("invalid_value") as refused:
        parse(json.dumps(message))
    assert refused.value.param == param


EVENTS = [
    SessionStarted("speech_1", SpeechFormat.MP3, ("instructions",)),
    SentenceBegun(2, "Well.", start_samples=36_012),
    SentenceEnded(2, 12),
    Flushed(),
    SpeechCancelled(2, 48_000),
    SessionDone(3, 24_000),
]


def test_the_reference_has_every_message_and_all_that_it_holds():
    """They have the order in which a session says them."""
    said = [*map(speech_socket.render, EVENTS), speech_socket.error_message(InvalidInput("No.", param="voice"))]
    assert [message["type"] for message in said] == list(speech_socket.SERVER)
    for message in said:
        assert all(f"`{name}`" in speech_socket.SERVER[message["type"]] for name in message if name != "type"), message


def test_places_are_in_milliseconds():
    """Rounded, from samples."""
    values = [{k: v for k, v in speech_socket.render(event).items() if isinstance(v, int)} for event in EVENTS[1:]]
    assert values == [
        {"index": 2, "start_ms": 1500},
        {"index": 2, "duration_ms": 0},
        {},
        {"sentences_done": 2, "sent_ms": 2000},
        {"sentences": 3, "duration_ms": 1000},
    ]
