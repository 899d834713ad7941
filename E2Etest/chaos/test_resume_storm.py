"""A break of the network: many clients come back at the same moment, among others with wrong ids and with one id."""

import asyncio
import json
import random

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from E2Etest.drive import recordings
from E2Etest.drive.process import ready
from E2Etest.drive.session import data, finals, stream

pytestmark = [
    pytest.mark.websocket,
    pytest.mark.nightly,
    pytest.mark.integration,
    pytest.mark.guarantee("resume"),
    pytest.mark.timeout(600),
]

CLIENTS, STRANGERS, CROWD, BREAKS = 100, 100, 40, 3
SPEECH = data(recordings.samples()) + bytes(28_800)
PIECE_BYTES = 16_000


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """A server with the model."""
    log = tmp_path_factory.mktemp("storm") / "log"
    with ready(log, LOG_LEVEL="WARNING", MAX_LIVE_SESSIONS="512", WS_RESUME_S="120") as server:
        yield server


def _connect(server, **query):
    asked = "&".join(f"{name}={value}" for name, value in query.items())
    return connect(f"{server.live_url}?{asked}", compression=None, open_timeout=120, max_size=None)


async def _talk(server, storms, seed):
    """The texts of a client's finals; its connection breaks at each storm, and it resumes when all others do."""
    rng, query = random.Random(seed), {}
    for storm in storms:
        async with _connect(server, **query) as socket:
            hello = await _send(socket, lambda sent: rng.randrange(sent, len(SPEECH)))
            socket.transport.abort()
        query = {"session_id": hello["session_id"], "received": 0}
        await storm.wait()
    said = {}
    async with _connect(server, **query) as socket:
        await _send(socket, lambda sent: len(SPEECH))
        await socket.send('{"action": "flush"}')
        while not said or said[max(said)]["ending"] != "flush":
            message = json.loads(await socket.recv())
            if message.get("is_final"):
                assert message["utterance"] not in said, "told twice"
                said[message["utterance"]] = message
    return " ".join(message["text"] for _, message in sorted(said.items()) if message["text"])


async def _send(socket, until):
    """Send the speech from where the server has it to a place that `until` names. The first message."""
    hello = json.loads(await socket.recv())
    assert hello["status"] == "connected", hello
    sent = hello.get("received_bytes", 0)
    stop = until(sent) if sent < len(SPEECH) else sent
    for at in range(sent, stop, PIECE_BYTES):
        await socket.send(SPEECH[at : min(stop, at + PIECE_BYTES)])
    return hello


async def _stranger(server, number):
    """Asks for a session that is not there."""
    async with _connect(server, session_id=f"live_{number:08x}.{'x' * 22}") as socket:
        assert json.loads(await socket.recv())["code"] == "session_not_found"


async def _crowd(server):
    """Many connections ask for one session at once: one gets it, and is then cut; again and again."""
    async with _connect(server) as socket:
        query = {"session_id": json.loads(await socket.recv())["session_id"]}
    for _ in range(BREAKS):
        found = await asyncio.gather(*(_ask(server, query) for _ in range(CROWD)))
        assert set(found) <= {"connected", "session_taken"}
        assert "connected" in found
    return query


async def _ask(server, query):
    try:
        async with _connect(server, **query) as socket:
            hello = json.loads(await socket.recv())
            socket.transport.abort()
            return hello.get("status", hello.get("code"))
    except (ConnectionClosed, InvalidStatus) as closed:
        return repr(closed)


async def test_a_storm_of_clients_that_come_back_loses_and_doubles_nothing(loaded, note):
    """A hundred clients break three times together, beside strangers with wrong ids and a crowd with one id."""
    whole = finals(await asyncio.to_thread(stream, loaded, [SPEECH]))
    expected = " ".join(text for text, *_ in whole)
    storms = [asyncio.Barrier(CLIENTS) for _ in range(BREAKS)]
    talks = [asyncio.create_task(_talk(loaded, storms, seed)) for seed in range(CLIENTS)]
    await asyncio.gather(*(_stranger(loaded, number) for number in range(STRANGERS)), _crowd(loaded))
    found = await asyncio.gather(*talks)
    assert [said for said in found if said != expected] == []
    note(f"{CLIENTS} clients resume together {BREAKS} times beside {STRANGERS} wrong ids and {CROWD} times the same id")
