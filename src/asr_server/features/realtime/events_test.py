"""The audio of a client's event."""

import base64

import pytest

from asr_server.core.errors import InvalidInput
from asr_server.features.realtime import events


@pytest.mark.parametrize("line_break", ["", "\n", "\r\n"])
def test_the_bound_of_an_event_is_on_its_audio_and_not_on_the_base64(monkeypatch, line_break):
    """One byte more is refused. Encoders of mail break lines after 76 characters, and end with a break."""
    monkeypatch.setattr(events, "MAX_APPEND_BYTES", 1_000)
    audio = bytes(range(250)) * 4

    def parsed(sound):
        lines = base64.encodebytes(sound).decode().replace("\n", line_break)
        return events.parse({"type": "input_audio_buffer.append", "audio": lines})

    assert parsed(audio)[1] == audio
    with pytest.raises(InvalidInput):
        parsed(audio + b"x")
