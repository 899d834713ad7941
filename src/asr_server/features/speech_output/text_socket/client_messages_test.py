"""What `WS /ws/speech` takes for a message."""

import json

import pytest

from asr_server.core.errors import InvalidValue, MalformedBody
from asr_server.features.speech_output.encoding.formats import SpeechFormat
from asr_server.features.speech_output.text_socket import client_messages, reference
from asr_server.features.speech_output.text_socket.client_messages import MAX_MESSAGE_CHARS, parse


def test_the_reference_has_every_message():
    """One row for each model."""
    assert list(reference.CLIENT) == list(client_messages.MODELS)


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
    with pytest.raises(MalformedBody):
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
    with pytest.raises(InvalidValue) as refused:
        parse(json.dumps(message))
    assert refused.value.param == param
