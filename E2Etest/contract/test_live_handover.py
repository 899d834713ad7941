"""Live sessions that go on with another server: the protocol of docs/use/websocket.md, on two servers here."""

import json
import random
import time

import pytest
from websockets.exceptions import ConnectionClosed

from asr_server.features.speakers.diarization.conftest import ScriptedLiveSpeakers
from asr_server.features.speakers.diarization.turns import Turn
from E2Etest.live.moving import MovingClient, Refused, connected
from E2Etest.live.session import data, finals, receive, stream

pytestmark = pytest.mark.websocket


@pytest.fixture(scope="module")
def another(start):
    """A second server like `live_server`."""
    with start() as server:
        yield server


def _flushed(client):
    client.act("flush")
    client.read_until(lambda: any(m["ending"] == "flush" for m in client.finals.values()))
    return client.texts


def test_a_session_that_moves_in_the_middle_of_words_loses_and_doubles_nothing(live_server, another, talk):
    """Numbers and times go on, and so do committed words; nothing that the client has comes again."""
    body = data(talk)
    whole = finals(stream(live_server, [body]))
    rng = random.Random(5)
    places = sorted(rng.sample(range(1, len(body)), 12))
    servers = [live_server, another]
    client = MovingClient(live_server)
    assert "continuation" in client.hello
    for number, (start, end) in enumerate(zip([0, *places], [*places, len(body)], strict=True)):
        client.send(body[start:end])
        client.read(0.1)
        if end < len(body):
            if rng.random() < 0.3:
                client.drop()
            client.move(servers[(number + 1) % 2])
            assert client.hello["continued"] is True
    texts = _flushed(client)
    client.close()
    assert texts == whole
    client.check_nothing_was_taken_back()


def test_a_server_that_issued_the_state_resumes_the_session(live_server, speech, said):
    """It says how many bytes and actions have arrived, so that none is repeated."""
    client = MovingClient(live_server)
    client.act("config", language="en")
    client.read_until(lambda: client.messages[-1].get("status") == "configured")
    client.act("dance")
    client.read_until(lambda: "error" in client.messages[-1])
    client.send(data(speech))
    client.drop()
    client.move(live_server)
    assert (client.hello["resumed"], client.hello["actions"]) == (True, 2)
    assert "continued" not in client.hello
    assert [text for text, *_ in _flushed(client)] == [said]
    statuses = [message.get("status") for message in client.messages]
    assert (statuses.count("configured"), statuses.count("continuation") > 0) == (1, True)
    client.close()


def test_actions_are_repeated_in_their_places(live_server, another, speech, said):
    """What was configured stays configured; flushes at one place keep their numbers; a reset discards the same."""
    client = MovingClient(live_server)
    client.act("config", language="en", endpointing="manual")
    client.send(data(speech))
    client.act("reset")
    client.act("flush")
    client.act("flush")
    client.send(data(speech))
    client.read_until(lambda: len(client.finals) == 2)
    client.move(another)
    client.act("flush")
    client.read_until(lambda: 3 in client.finals and client.continuation["actions"] == 5)
    client.move(live_server)
    assert (client.hello["endpointing"], client.hello["actions"]) == ("manual", 5)
    assert [final["text"] for _, final in sorted(client.finals.items())] == ["", "", said]
    client.close()


def test_a_state_that_another_server_followed_is_not_gone_back_to(live_server, another, speech, said):
    """A session that its client left behind is stale: the newer state counts."""
    client = MovingClient(live_server)
    client.send(data(speech[:20_000]))
    client.drop()
    client.move(another)
    client.send(data(speech[20_000:]))
    client.read_until(lambda: client.finals)
    client.drop()
    client.move(live_server)
    assert client.hello["continued"] is True
    client.send(data(speech))
    assert [text for text, *_ in _flushed(client)] == [said, said]
    client.close()


def test_a_client_that_did_not_ask_sees_nothing_of_it(live_server):
    """No message of its session has a continuation."""
    messages = stream(live_server, [bytes(400_000)])
    assert not [message for message in messages if "continuation" in message]


def _refusal(server, session_id, frame):
    """The answer to the first frame of a client that continues this session, and the close code."""
    with connected(server, handover="true", session_id=session_id) as socket:
        socket.send(frame)
        message = receive(socket)
        with pytest.raises(ConnectionClosed) as closed:
            receive(socket)
        return message, closed.value.rcvd.code


@pytest.mark.parametrize(
    "frame", ["{}", '{"action":"continue"}', '{"action":"continue","state":"AAAA"}', b"\0\0", "[]"]
)
def test_a_wrong_first_frame_is_refused(live_server, frame):
    """With the error and its close code."""
    message, code = _refusal(live_server, "live_0123abcd." + 22 * "x", frame)
    assert message["code"] in {"invalid_value", "malformed_body"}
    assert code == 4000


def test_a_state_gives_nobody_the_session_of_another_key(start, another, speech):
    """To another key the id is unknown, whatever the state says; and the session goes on undisturbed."""
    with start(API_KEYS="sk-first,sk-second") as server:
        client = MovingClient(server)
        client.send(data(speech[:20_000]))
        client.read_until(lambda: any(m.get("is_partial") for m in client.messages))
        frame = json.dumps({"action": "continue", "state": client.continuation["state"]})
        server.key = "sk-second"
        message, code = _refusal(server, client.hello["session_id"], frame)
        server.key = "sk-first"
        assert (message["code"], code) == ("session_not_found", 4004)
        client.send(data(speech[20_000:]))
        assert len(_flushed(client)) == 1
        client.close()


def test_a_server_that_shuts_down_asks_its_clients_to_move_and_serves_them_meanwhile(start, another, talk):
    """The client goes on elsewhere in the middle of a word, and the server ends without waiting for more."""
    body = data(talk)
    whole = finals(stream(another, [body]))
    with start(HANDOVER_S="10") as server:
        client = MovingClient(server)
        client.send(body[:70_000])
        client.read_until(lambda: any(m.get("is_partial") for m in client.messages))
        server.begin_to_stop()
        began_s = time.monotonic()
        client.read_until(lambda: client.reconnect)
        assert client.reconnect["within_s"] == 10
        with pytest.raises((Refused, ConnectionClosed, OSError)):
            client.move(server)
        client.send(body[70_000:90_000])
        client.move(another)
        client.send(body[90_000:])
        assert _flushed(client) == whole
        client.close()
        server.stop()
        assert time.monotonic() - began_s < 10


@pytest.mark.parametrize("handover_s", ["0", "0.2"])
def test_a_client_that_does_not_move_gets_its_final(start, speech, handover_s):
    """And 1001, as one that did not ask for it."""
    with start(HANDOVER_S=handover_s) as server:
        client = MovingClient(server)
        client.send(data(speech[:40_000]))
        client.read_until(lambda: any(m.get("is_partial") for m in client.messages))
        server.begin_to_stop()
        with pytest.raises(ConnectionClosed) as closed:
            client.read(60)
        assert closed.value.rcvd.code == 1001
        assert [(final["ending"], final["end"]) for final in client.finals.values()] == [("close", 2.5)]
        assert (client.reconnect is not None) == (handover_s != "0")


def test_labels_stay_and_a_letter_never_means_two_people(start, speech):
    """Another server does not know the voices, which the client is told: the same person gets the next letter."""
    turns = [Turn(0, 0, len(speech) // 16)]
    with (
        start(speakers=ScriptedLiveSpeakers(turns, horizon_ms=500)) as first,
        start(speakers=ScriptedLiveSpeakers(turns, horizon_ms=500)) as second,
    ):
        client = MovingClient(first, speakers="true")
        for server, letters in ((second, {"A"}), (first, {"A", "B"}), (second, {"A", "B", "C"})):
            count = len(client.finals) + 1
            client.send(data(speech))
            client.read_until(lambda count=count: len(client.finals) >= count and len(_letters(client)) >= count)
            # The next server is to hear nothing of this speech: it is told of one turn.
            end_bytes = 32_000 * client.finals[count]["end"]
            client.read_until(lambda end_bytes=end_bytes: client.continuation["received_bytes"] >= end_bytes)
            assert _letters(client) == letters
            client.move(server)
            client.read_until(lambda: client.messages[-1].get("status") == "speakers_restarted")
        client.close()


def _letters(client):
    labelled = [message["speakers"] for message in client.messages if isinstance(message.get("speakers"), list)]
    return {run["speaker"] for runs in labelled for run in runs} - {None}
