"""Which messages are parsed."""

import json

import pytest

from asr_server.net import websocket_io


@pytest.mark.parametrize("text", ["[" * 1_500 + "," * 20_000, "\u8bcd" * 1_000_000, "C:\\ " * 10_000], ids=range(3))
def test_a_text_may_have_any_characters(text):
    """Within the bounds, which count the characters of texts too."""
    for message in (json.dumps({"a": text}), json.dumps({"a": text}).encode()):
        assert websocket_io.parse_json(message) == {"a": text}


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("[" + "[]," * 2_000 + "1]", "too many values"),
        ("[" + "{}," * 2_000 + "1]", "too many values"),
        ("[" + "1," * 20_001 + "1]", "too many values"),
        ("1" * 21, "too long"),
        (b"\xff", "invalid start byte"),
    ],
    ids=range(5),
)
def test_what_would_keep_the_others_waiting_is_refused(message, reason):
    """Thousands of values take milliseconds, and a frame has room for millions."""
    with pytest.raises(ValueError, match=reason):
        websocket_io.parse_json(message)
