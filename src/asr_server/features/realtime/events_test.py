"""What a client may say, in any bytes."""

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.core.errors import InvalidInput
from asr_server.features.realtime import events

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers().map(lambda n: n / 7) | st.text(max_size=8),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=8), below, max_size=3),
)
_EVENTS = st.fixed_dictionaries(
    {"type": st.sampled_from([*events.PARSERS, *events.SPEECH_EVENTS, "dance"]) | _JSON},
    optional={"event_id": _JSON, "audio": _JSON, "session": _JSON, "item_id": _JSON},
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(_EVENTS)
def test_every_object_is_an_event_or_an_invalid_input(event):
    """Nothing else comes out, whatever is in the fields."""
    events.event_id(event)
    try:
        kind, _ = events.parse(event)
    except InvalidInput:
        return
    assert kind == event["type"] in events.PARSERS


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.binary(max_size=64))
def test_every_frame_is_an_object_or_an_invalid_event(frame):
    """Bytes of any kind."""
    try:
        assert isinstance(events.load(frame), dict)
    except InvalidInput:
        return


def test_the_bound_of_an_event_is_on_its_audio_and_not_on_the_base64(monkeypatch):
    """One byte more is refused."""
    monkeypatch.setattr(events, "MAX_APPEND_BYTES", 1_000)
    most = base64.b64encode(bytes(events.MAX_APPEND_BYTES)).decode()
    _, audio = events.parse({"type": "input_audio_buffer.append", "audio": most})
    assert len(audio) == events.MAX_APPEND_BYTES
    over = base64.b64encode(bytes(events.MAX_APPEND_BYTES + 1)).decode()
    with pytest.raises(InvalidInput):
        events.parse({"type": "input_audio_buffer.append", "audio": over})


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_base64_with_line_breaks_is_the_same_audio(line_break):
    """Encoders of mail break lines after 76 characters, and end with a break."""
    audio = bytes(range(256)) * 4
    lines = base64.encodebytes(audio).decode().replace("\n", line_break)
    assert events.parse({"type": "input_audio_buffer.append", "audio": lines})[1] == audio
