"""Rules of the four protocols that no whole call of E2Etest/telephony shows."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server_telephony.protocols import (
    CALLEE,
    CALLER,
    AsteriskReader,
    AudioSocketReader,
    BadMessage,
    CallAudio,
    CallStarted,
    FreeswitchReader,
    Stopped,
    TwilioReader,
)
from E2Etest.telephony import phones

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["start", "media", "track"]), inner),
    max_leaves=6,
)
_FIELDS = ("event", "start", "media", "dtmf", "digit", "format", "channel_id", "connection_id")
_EVENTS = st.sampled_from(["connected", "start", "media", "dtmf", "stop", "MEDIA_START", "DTMF_END"])
_OBJECTS = st.fixed_dictionaries({}, optional=dict.fromkeys(_FIELDS, _VALUES) | {"event": _EVENTS | _VALUES})


@given(body=_OBJECTS | _VALUES, kind=st.sampled_from([TwilioReader, AsteriskReader, FreeswitchReader]))
def test_any_json_is_read_or_refused(body, kind):
    """No message of a peer raises another error."""
    reader = kind({})
    with suppress(BadMessage):
        list(reader.read(json.dumps(body)))


@given(kind=st.integers(0, 255), payload=st.binary(max_size=20), named=st.booleans())
def test_any_frame_of_audiosocket_is_read_or_refused(kind, payload, named):
    reader = AudioSocketReader()
    if named:
        assert isinstance(reader.read(0x01, bytes(16)), CallStarted)
    with suppress(BadMessage):
        reader.read(kind, payload)


_START = [json.dumps(message) for message in phones.twilio_start("CA-bad")]
_MEDIA = phones.twilio_media("inbound", 1, bytes(160))


@pytest.mark.parametrize(
    ("reader", "messages", "code"),
    [
        (TwilioReader({}), [bytes(160)], "invalid_message"),
        (TwilioReader({}), [*_START, json.dumps(_MEDIA).replace("=", "!")], "invalid_message"),
        (TwilioReader({}), [*_START, json.dumps(phones.twilio_media("outbound", 1, b"a"))], "invalid_message"),
        (TwilioReader({}), [*_START, _START[1]], "invalid_message"),
        (TwilioReader({}), [_START[0], _START[1].replace("8000", "1e999")], "invalid_message"),
        (AsteriskReader({}), [bytes(320)], "invalid_message"),
        (FreeswitchReader({"channels": "2"}), [bytes(322)], "invalid_audio"),
    ],
    ids=["binary", "no base64", "track not announced", "second start", "no number", "media first", "half a frame"],
)
def test_a_message_that_nobody_sends_is_refused(reader, messages, code):
    *before, last = messages
    for message in before:
        list(reader.read(message))
    with pytest.raises(BadMessage) as refused:
        list(reader.read(last))
    assert refused.value.code == code


_NAMED = (0x01, bytes(16))


@pytest.mark.parametrize("frames", [[(0x01, bytes(15))], [_NAMED] * 2, [_NAMED, (0x42, b"")], [_NAMED, (0x03, b"xy")]])
def test_a_frame_of_audiosocket_that_nobody_sends_is_refused(frames):
    reader = AudioSocketReader()
    for kind, payload in frames[:-1]:
        reader.read(kind, payload)
    with pytest.raises(BadMessage):
        reader.read(*frames[-1])


def test_stereo_is_divided_by_party():
    """The caller has the first sample of each pair."""
    reader = FreeswitchReader({"channels": "2", "rate": "16000"})
    assert list(reader.read(b"\1\0\2\0\3\0\4\0")) == [
        CallAudio(CALLER, b"\1\0\3\0", 16_000),
        CallAudio(CALLEE, b"\2\0\4\0", 16_000),
    ]


def test_calls_of_one_connection_of_asterisk_have_names_of_their_own():
    """Their connection_id is the name in websocket_client.conf."""
    names = set()
    for channel in ("1.1", "1.2"):
        line = f"MEDIA_START connection_id:asr channel:WebSocket/asr channel_id:{channel} format:ulaw ptime:20"
        (started,) = AsteriskReader({}).read(line)
        names.add(started.call)
    assert names == {"1.1", "1.2"}


def test_an_error_of_asterisk_ends_the_call_with_its_own_reason():
    assert AudioSocketReader().read(0xFF, b"\4") == Stopped("asterisk_error")
