"""Calls of the four telephone systems become words, each named by its party."""

import uuid

import pytest

from E2Etest.drive import recordings
from E2Etest.drive.process import ready
from E2Etest.drive.session import pcm_of
from E2Etest.telephony import phones
from E2Etest.telephony.conftest import bridged

pytestmark = pytest.mark.integration


def _said(messages):
    """The words of each party."""
    said = {}
    for message in messages:
        if message["type"] == "text":
            assert message["final"]
            said[message["party"]] = f"{said.get(message['party'], '')} {message['text']}".strip()
    return said


def _check(messages, protocol, parties=("caller",)):
    """A whole call: its begin, the words, its end; the numbers without a gap."""
    assert [message["number"] for message in messages] == list(range(1, len(messages) + 1))
    assert (messages[0]["type"], messages[0]["protocol"]) == ("call_started", protocol)
    assert messages[0]["parties"] == list(parties)
    assert (messages[-1]["type"], messages[-1]["reason"]) == ("call_ended", "hangup")
    assert _said(messages) == dict.fromkeys(parties, recordings.sample()[1])


def test_twilio(bridge):
    """Both tracks of Media Streams; the parameters of the TwiML are passed on."""
    sound = recordings.samples()
    phones.twilio_call(bridge, "CA1", inbound=sound, outbound=sound)
    messages = bridge.call("CA1")
    _check(messages, "twilio", ("inbound", "outbound"))
    assert messages[0]["parameters"] == {"caller": "+15550100"}
    assert [message["digit"] for message in messages if message["type"] == "dtmf"] == ["5"]


@pytest.mark.parametrize(("kind", "rate"), [(0x10, 8_000), (0x11, 12_000), (0x16, 48_000)])
def test_audiosocket(bridge, kind, rate):
    """The UUID of the dialplan names the call; each rate has its kind."""
    call = str(uuid.uuid4())
    phones.audiosocket_call(bridge, call, recordings.samples(), kind=kind, rate=rate)
    _check(bridge.call(call), "audiosocket")


@pytest.mark.parametrize(("form", "plain"), [("ulaw", True), ("slin16", False)])
def test_chan_websocket(bridge, form, plain):
    """Events as plain text and as JSON."""
    phones.asterisk_call(bridge, f"{form}-call", recordings.samples(), form=form, plain=plain)
    messages = bridge.call(f"{form}-call")
    _check(messages, "asterisk")
    assert [message["digit"] for message in messages if message["type"] == "dtmf"] == ["5"]


def test_mod_audio_stream(bridge):
    """Stereo has the two parties; text frames are passed on."""
    sound = recordings.samples()
    phones.freeswitch_call(bridge, "fs-1", sound, sound)
    messages = bridge.call("fs-1")
    _check(messages, "freeswitch", ("caller", "callee"))
    assert [message["content"] for message in messages if message["type"] == "metadata"] == [{"queue": "sales"}]


@pytest.mark.nightly
def test_each_party_has_its_own_words(tmp_path):
    """Two people read different sentences at the same time, in the quality of a telephone."""
    clips = [clip for name in ("librivox_0920", "librivox_0930") for clip in recordings.real_clips(name)]
    first, second = (pcm_of(clip.path) for clip in clips)
    with ready(tmp_path / "log", MODEL_ID="moonshine-tiny-en") as english, bridged(english.base, "-l", "en") as bridge:
        phones.twilio_call(bridge, "a-call", inbound=first, outbound=second)
        phones.freeswitch_call(bridge, "another", first, second)
        calls = [_said(bridge.call(name)) for name in ("a-call", "another")]
    for said, parties in zip(calls, (("inbound", "outbound"), ("caller", "callee")), strict=True):
        assert said.keys() == set(parties)
        for party, clip in zip(parties, clips, strict=True):
            assert recordings.word_errors(recordings.plain_words(clip.text), recordings.plain_words(said[party])) <= 4
