"""Frames that no telephone system sends, secrets, limits, and a server that is away."""

import json
import uuid
from contextlib import suppress

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from E2Etest.drive import recordings
from E2Etest.drive.process import free_port
from E2Etest.telephony import phones
from E2Etest.telephony.conftest import bridged

pytestmark = pytest.mark.integration

MEDIA = phones.twilio_media("inbound", 1, bytes(160))
ASTERISK = "MEDIA_START connection_id:c channel:WebSocket/c channel_id:bad.1 format:{}"
# `protocols_test` of the bridge has others.
BAD = [
    ("twilio", [json.dumps(MEDIA)], "invalid_message"),
    ("asterisk", [ASTERISK.format("opus")], "unsupported_format"),
    ("asterisk", [ASTERISK.format("slin"), bytes(321)], "invalid_audio"),
    ("freeswitch?channels=3", [], "invalid_query"),
    ("freeswitch", [bytes(300_000)], "message_too_big"),
    ("freeswitch", ["x" * 20_000], "message_too_big"),
]


@pytest.mark.parametrize(("path", "messages", "code"), BAD)
def test_a_bad_message_ends_its_call_alone(bridge, path, messages, code):
    """The close frame and the log have the code; a call that was there before is not touched."""
    other = str(uuid.uuid4())
    logged = sum(f"code={code}" in line for line in bridge.log)
    with phones.audiosocket(bridge, other) as good:
        good.sendall(phones.frame(0x10, bytes(320)))
        with connect(bridge.url(path)) as stream:
            with suppress(ConnectionClosed):  # the bridge may have ended the call by now
                for message in messages:
                    stream.send(message)
            close_code, reason = phones.wait_closed(stream)
        bridge.wait_for_log(code, logged + 1)
        good.sendall(phones.frame(0x00))
    assert close_code == (1009 if code == "message_too_big" else 1008)
    assert reason.startswith(code) or (path, code) == ("freeswitch", "message_too_big") or code == "invalid_query"
    assert bridge.call(other)[-1]["reason"] == "hangup"


@pytest.mark.parametrize("frames", [[(0x10, bytes(320))], [(0x01, bytes(16)), (0x10, bytes(320)), (0x12, bytes(640))]])
def test_a_bad_frame_of_audiosocket_hangs_up(bridge, frames):
    """The bridge sends its hangup, and closes."""
    with phones.audiosocket(bridge) as stream:
        for kind, payload in frames:
            stream.sendall(phones.frame(kind, payload))
        assert stream.makefile("rb").read() == phones.frame(0x00)


def test_a_secret_is_asked_of_everybody(fake_server, tmp_path):
    """In a header, as the password of any user, in the address, or, for Twilio, in the parameters of the TwiML."""
    secret = tmp_path / "secret"
    secret.write_text("sesame\n")
    with bridged(fake_server.base, "--secret-file", str(secret)) as bridge:
        for path, headers in (("asterisk?token=other", {}), ("freeswitch", {"Authorization": "Bearer o"})):
            with pytest.raises(InvalidStatus) as refused, connect(bridge.url(path), additional_headers=headers):
                pass
            assert refused.value.response.status_code == 401
        for parameters, code in (({}, 1008), ({"token": "other"}, 1008), ({"token": "sesame"}, 1000)):
            with connect(bridge.url("twilio")) as stream:
                with suppress(ConnectionClosed):
                    for message in (*phones.twilio_start("CA-secret", **parameters), {"event": "stop"}):
                        stream.send(json.dumps(message))
                assert phones.wait_closed(stream)[0] == code
        for url in (bridge.url("asterisk?token=sesame"), bridge.url("freeswitch").replace("//", "//any:sesame@")):
            connect(url).close()
        assert "sesame" not in "".join(bridge.log)
        assert "sesame" not in json.dumps(bridge.messages)


def test_no_more_calls_than_allowed(fake_server):
    """One more is refused on either listener, and taken once another has ended. Who is silent makes no call."""
    with bridged(fake_server.base, "--max-calls", "1") as bridge:
        with connect(bridge.url("twilio")), phones.audiosocket(bridge), phones.audiosocket(bridge, str(uuid.uuid4())):
            bridge.wait_for(lambda messages: messages)
            with connect(bridge.url("freeswitch")) as stream:
                assert phones.wait_closed(stream)[0] == 1013
            with phones.audiosocket(bridge, str(uuid.uuid4())) as stream:
                assert stream.makefile("rb").read() == phones.frame(0x00)
        bridge.wait_for(lambda messages: messages[-1]["type"] == "call_ended")
        phones.freeswitch_call(bridge, "later", recordings.samples())
        assert bridge.call("later")[-1]["reason"] == "hangup"


def test_words_go_back_to_freeswitch(fake_server):
    """On its own socket, while it is open; nothing on standard output if only that was asked for."""
    sound = np.concatenate([recordings.samples(), np.zeros(24_000, np.int16)])
    with bridged(fake_server.base, "--to", "socket") as bridge:
        with connect(bridge.url("freeswitch?call=back&rate=16000")) as stream:
            stream.send(sound.tobytes()[:200_000])
            said = []
            while not said or said[-1]["type"] != "text":
                said.append(json.loads(stream.recv(timeout=60)))
        assert [message["type"] for message in said] == ["call_started", "text"]
        assert said[-1]["text"] == recordings.sample()[1]
        bridge.stop()
        assert bridge.process.wait(timeout=60) == 0
        assert bridge.messages == []


@pytest.mark.nightly
def test_a_server_that_is_away_costs_words_and_says_so():
    """The call is followed to its end; what was not heard is told."""
    call = str(uuid.uuid4())
    with bridged(f"http://127.0.0.1:{free_port()}") as bridge:
        with phones.audiosocket(bridge, call) as stream:
            for _ in range(50):
                stream.sendall(phones.frame(0x10, bytes(320)))
            bridge.wait_for_log("server_unreachable")
        bridge.stop()
        messages = bridge.call(call)
    assert [message["type"] for message in messages] == ["call_started", "audio_lost", "call_ended"]
    assert (messages[1]["start"], messages[1]["end"]) == (0.0, 1.0)


def test_the_end_of_the_bridge_ends_its_calls(fake_server):
    """Their last words come first."""
    call = str(uuid.uuid4())
    with bridged(fake_server.base) as bridge, phones.audiosocket(bridge, call) as stream:
        for packet in phones.packets(phones.at_rate(recordings.samples(), 8_000).tobytes(), 16_000):
            stream.sendall(phones.frame(0x10, packet))
        bridge.wait_for(lambda messages: messages)
        bridge.stop()
        messages = bridge.call(call)
    assert messages[-1]["reason"] == "shutdown"
    assert " ".join(message["text"] for message in messages if message["type"] == "text") == recordings.sample()[1]
