"""Live sessions that go on with another server, when theirs ends in order and when it is killed."""

import random

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from E2Etest.live.moving import MovingClient
from E2Etest.live.session import data, finals, stream
from E2Etest.process import ServerProcess, ready

pytestmark = [pytest.mark.websocket, pytest.mark.integration]


def _finish(client):
    client.act("flush")
    client.read_until(lambda: any(final["ending"] == "flush" for final in client.finals.values()))
    client.close()
    return client.texts


@pytest.mark.nightly
def test_a_session_goes_on_when_its_server_is_stopped_in_the_middle_of_a_word(server, talk, tmp_path):
    """The client follows the request to reconnect; its text is that of one server, and the first one exits with 0."""
    body = data(talk)
    whole = finals(stream(server, [body]))
    with ready(tmp_path / "log", HANDOVER_S="10") as first:
        client = MovingClient(first)
        client.send(body[:70_000])
        client.read_until(lambda: any(message.get("is_partial") for message in client.messages))
        first.process.terminate()
        client.read_until(lambda: client.reconnect)
        client.send(body[70_000:80_000])
        client.move(server)
        assert first.process.wait(timeout=60) == 0
        assert "Traceback" not in first.log()
    assert client.hello["continued"] is True
    client.send(body[80_000:])
    assert _finish(client) == whole


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("gateway", ["false", "true"])
def test_a_session_survives_servers_that_are_killed_at_random_moments(server, talk, tmp_path, gateway):
    """Four times, each time the whole process and its worker: no word is lost, doubled or taken back."""
    body = data(talk)
    expected = finals(stream(server, [body]))
    rng = random.Random(11)
    places = sorted(rng.sample(range(1, len(body)), 4))
    made = [_started(tmp_path, number, gateway) for number in range(2)]
    try:
        client = MovingClient(made[0])
        for number, (start, end) in enumerate(zip([0, *places], [*places, len(body)], strict=True)):
            for at in range(start, end, 3_200):
                client.send(body[at : min(end, at + 3_200)])
                client.read(0.02)
            if end == len(body):
                break
            made[number].process.kill()
            with pytest.raises((ConnectionClosed, OSError)):
                client.read(60)
            client.move_when_possible(made[number + 1])
            assert client.hello["continued"] is True
            if number + 2 <= len(places):
                made.append(_started(tmp_path, number + 2, gateway))
        found = _finish(client)
        assert [(text, ending) for text, _, _, ending in found] == [(text, ending) for text, _, _, ending in expected]
        # Each server detects speech anew, which may move an edge by some frames of 32 ms.
        assert np.allclose([final[1:3] for final in found], [final[1:3] for final in expected], atol=0.1, rtol=0)
    finally:
        for each in made:
            each.stop()
    client.check_nothing_was_taken_back()


def _started(folder, number, gateway):
    home = folder / str(number)  # each has a directory of its own for what it stores
    home.mkdir()
    made = ServerProcess(home / "log", GATEWAY_MODE=gateway, PRELOAD="true", IDLE_TIMEOUT="0")
    made.wait_until_live()
    made.wait_for(lambda health: health["model_loaded"], timeout_s=180)
    return made
