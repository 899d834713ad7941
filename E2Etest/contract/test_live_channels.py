"""Two channels over one live socket: each person is transcribed as if alone, also where both speak."""

import random
import time

import numpy as np
import pytest

from asr_server.client.live import LiveClient, LiveOptions
from E2Etest.live.moving import MovingClient
from E2Etest.live.session import act, data, finals, open_session, receive, stream

pytestmark = [pytest.mark.websocket, pytest.mark.demo_server]


@pytest.fixture(scope="module")
def call(speech, talk):
    """Two people who speak at the same time, int16: the first twice, the second once and later."""
    return talk, np.concatenate(
        [np.zeros(12_000, np.int16), speech, np.zeros(len(talk) - len(speech) - 12_000, np.int16)]
    )


def _interleaved(call):
    return data(np.stack(call, axis=1).reshape(-1))


def _cuts(body, rng):
    at = 0
    while at < len(body):
        size = rng.choice([1, 3, 641, 5_001, 14_400])
        yield body[at : at + size]
        at += size


def _alone(server, call):
    return [[final for final in finals(stream(server, [data(pcm)])) if final[0]] for pcm in call]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_each_channel_has_the_finals_that_it_has_alone(live_server, call, seed):
    """Texts and times are the same, however the frames are cut, and the two are told apart."""
    messages = []
    with open_session(live_server, channels=2) as socket:
        for piece in _cuts(_interleaved(call), random.Random(seed)):
            socket.send(piece)
        act(socket, "flush")
        while sum(m.get("ending") == "flush" for m in messages) < 2:
            messages.append(receive(socket))
    of_channel = [[m for m in messages if m.get("speaker") == name] for name in "AB"]
    assert [finals(of) for of in of_channel] == _alone(live_server, call)
    first, second = ([m for m in of if m.get("is_final") and m["text"]] for of in of_channel)
    assert second[0]["start"] < first[0]["end"]  # both spoke at once
    for message in messages:
        assert "".join(run["text"] for run in message["speakers"]) == message["committed"]
        assert {run["speaker"] for run in message["speakers"]} <= {message["speaker"]}


def test_a_connection_that_breaks_loses_and_doubles_nothing_of_either_channel(live_server, call):
    """The client of the package resumes both where they had arrived."""
    body, rng = _interleaved(call), random.Random(7)
    client, lines, sent = LiveClient(live_server.base, LiveOptions(channels=2)), {}, 0
    for place in sorted(rng.sample(range(1, len(body)), 10)):
        client.send(body[sent:place])
        sent = place
        if rng.random() < 0.5:
            lines |= {line.utterance: line for line in client.lines(wait_s=0.02)}
        client.cut()
        client.resume()
    client.send(body[sent:])
    client.flush()
    ended = set()
    for line in client.lines():
        lines[line.utterance] = line
        ended |= {line.speaker} if line.ending == "flush" else set()
        if len(ended) == 2:
            break
    client.close()
    found = [
        [
            (line.text, line.start_s, line.end_s, line.ending)
            for _, line in sorted(lines.items())
            if line.speaker == name
        ]
        for name in "AB"
    ]
    assert [[line for line in of if line[0]] for of in found] == _alone(live_server, call)


@pytest.fixture(scope="module")
def another(start):
    """A second server like `live_server`."""
    with start() as server:
        yield server


def _flushed(client, count):
    """The texts of each channel, when flushes have ended so many utterances of both together."""
    client.act("flush")
    client.read_until(lambda: sum(final["ending"] == "flush" for final in client.finals.values()) == count)
    return [client.texts_of(channel) for channel in range(2)]


def test_a_session_that_moves_in_the_middle_of_words_loses_and_doubles_nothing(live_server, another, call):
    """Of either channel, also where a frame of both was cut; numbers, times and committed words go on."""
    body, rng = _interleaved(call), random.Random(3)
    places = sorted(rng.sample(range(1, len(body)), 8))
    servers = [live_server, another]
    client = MovingClient(live_server, channels=2)
    assert "continuation" in client.hello
    for number, (start, end) in enumerate(zip([0, *places], [*places, len(body)], strict=True)):
        client.send(body[start:end])
        client.read(0.1)
        if end < len(body):
            if rng.random() < 0.3:
                client.drop()
            client.move(servers[(number + 1) % 2])
            assert (client.hello["continued"], client.hello["channels"]) == (True, 2)
    found = _flushed(client, 2)
    client.close()
    assert found == _alone(live_server, call)
    client.check_nothing_was_taken_back()


def test_actions_are_repeated_in_their_places_for_both_channels(live_server, another, call):
    """A wrong one counts too. A server that issued the state says how many have arrived."""
    client = MovingClient(live_server, channels=2)
    client.act("config", language="en", endpointing="manual")
    client.act("dance")
    body = _interleaved(call)
    client.send(body)
    client.act("reset")
    client.act("flush")
    client.read_until(lambda: len(client.finals) == 2)
    client.drop()
    client.move(live_server)
    assert (client.hello["actions"], "continued" in client.hello) == (4, False)
    client.send(body)
    client.move(another)
    found = _flushed(client, 4)
    client.read_until(lambda: client.continuation["actions"] == 5)
    client.move(live_server)
    assert (client.hello["endpointing"], client.hello["actions"]) == ("manual", 5)
    client.close()
    spoken = [finals(stream(live_server, [data(pcm)], endpointing="manual", language="en")) for pcm in call]
    assert [[text for text, *_ in of] for of in found] == [[text for text, *_ in of] for of in spoken]


def test_a_server_that_shuts_down_asks_once_for_both_channels(start, another, call):
    """The client of the package goes on elsewhere, and the server ends without waiting for more."""
    body, sent = _interleaved(call), 150_001
    with start(HANDOVER_S="10") as server:
        client = MovingClient(server, channels=2)
        client.send(body[:sent])
        client.read_until(lambda: any(m.get("is_partial") for m in client.messages))
        server.begin_to_stop()
        began_s = time.monotonic()
        client.read_until(lambda: client.reconnect)
        assert client.reconnect["within_s"] == 10
        client.move(another)
        client.send(body[sent:])
        found = _flushed(client, 2)
        client.close()
        server.stop()
        assert time.monotonic() - began_s < 10
    assert sum(message.get("status") == "reconnect" for message in client.messages) == 1
    assert found == _alone(another, call)
