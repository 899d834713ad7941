"""Connections that break: nothing that arrived is lost, nothing is said twice."""

import random

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from asr_server.client.live import LiveClient
from E2Etest.drive.session import act, data, finals, open_session, pieces, receive, stream, upto_flush

pytestmark = pytest.mark.websocket


def _wait_for_final(socket, kept, upto):
    while max((m["utterance"] for m in kept if m.get("is_final")), default=0) < upto:
        kept.append(receive(socket))


def _read_on(socket):
    while True:
        receive(socket)


@pytest.mark.guarantee("resume")
@pytest.mark.timeout(300)
def test_fifty_cuts_in_the_middle_of_speech_lose_and_double_nothing(live_server, talk, note):
    """The client reconnects each time and goes on at the byte that the server had reached."""
    body = data(np.concatenate([talk, talk]))
    whole = finals(stream(live_server, [body]))
    rng = random.Random(3)
    places, reached = sorted(rng.sample(range(1, len(body)), 50)), []
    client, lines = LiveClient(live_server.base), {}
    for start, end in zip([0, *places], [*places, len(body)], strict=True):
        client.send(body[start:end])
        if end < len(body):
            if rng.random() < 0.5:
                lines |= {line.utterance: line for line in client.lines(wait_s=0.02)}
            client.cut()
            client.resume()
            reached.append(int(client.hello["received_bytes"]))
    client.flush()
    for line in client.lines():
        lines[line.utterance] = line
        if line.ending == "flush":
            break
    client.close()
    found = [(n.text, n.start_s, n.end_s, n.ending) for _, n in sorted(lines.items()) if n.text]
    assert found == whole
    assert reached == sorted(reached)
    words = sum(len(text.split()) for text, *_ in whole)
    note(f"{len(places)} interruptions, {words} words in {len(whole)} utterances: same words, same times")


def test_a_client_that_ended_in_order_finds_its_final_when_it_comes_back(live_server, speech, said):
    """What was buffered is transcribed at the end of the connection and kept; then the session goes on."""
    opened = speech[: len(speech) - 14_400]
    with open_session(live_server) as socket:
        socket.send(data(opened))
        identity = socket.hello["session_id"]
    with open_session(live_server, session_id=identity, received=0) as socket:
        assert socket.hello["resumed"] is True
        assert socket.hello["received_bytes"] == 2 * len(opened)
        kept = []
        _wait_for_final(socket, kept, 1)
        assert kept[-1]["text"]
        assert kept[-1]["ending"] == "flush"
        socket.send(data(speech))
        act(socket, "flush")
        assert [text for text, *_ in finals(upto_flush(socket))] == [said]


def test_a_client_gets_only_the_finals_that_it_has_not(live_server, talk, said):
    """`received` is the last utterance it knows."""
    with open_session(live_server) as socket:
        for piece in pieces(data(talk), 3_200):
            socket.send(piece)
        kept = []
        _wait_for_final(socket, kept, 2)
        identity = socket.hello["session_id"]
    with open_session(live_server, session_id=identity, received=1) as socket:
        assert [receive(socket)["utterance"]] == [2]
        act(socket, "flush")
        assert [m["utterance"] for m in upto_flush(socket)] == [3]


def test_a_second_connection_takes_the_session_over(live_server, speech):
    """The first is told so and closed with 4009."""
    with open_session(live_server) as first:
        first.send(data(speech[:32_000]))
        receive(first)
        with open_session(live_server, session_id=first.hello["session_id"]) as second:
            with pytest.raises(ConnectionClosed) as closed:
                _read_on(first)
            assert closed.value.rcvd.code == 4009
            act(second, "flush")
            assert upto_flush(second)[-1]["text"]


def test_a_session_is_forgotten_after_its_time(start):
    """With no time to wait, there is nothing to resume."""

    with start(WS_RESUME_S="0") as server:
        with open_session(server) as first:
            pass
        with open_session(server, session_id=first.hello["session_id"]) as second:
            assert second.hello["code"] == "session_not_found"
