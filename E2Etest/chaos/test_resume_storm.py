"""A break of the network: many clients come back at the same moment, among others with wrong ids and with one id."""

import asyncio
import json
import random

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from E2Etest import recordings
from E2Etest.live.session import data, stream
from E2Etest.process import ready

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


@pytest.fixture(scope="module", params=["plain", "gateway"])
def loaded(request, tmp_path_factory):
    """A server with the model, by itself and behind a gateway."""
    gateway = {"GATEWAY_MODE": "true"} if request.param == "gateway" else {}
    log = tmp_path_factory.mktemp("storm") / "log"
    with ready(log, LOG_LEVEL="WARNING", MAX_LIVE_SESSIONS="512", WS_RESUME_S="120", **gateway) as server:
        yield server


def _connect(server, **query):
    asked = "&".join(f"{name}={value}" for name, value in query.items())
    return connect(f"{server.live_url}?{asked}", compression=None, open_timeout=120, max_size=None)


async def _talk(server, storms):
    """The texts of a client's finals by number; its connection breaks at each storm, and it resumes with all others."""
    said, query, sent, rng = {}, {}, 0, random.Random(id(storms))
    for storm in [*storms, None]:
        async with _connect(server, **query) as socket:
            hello = json.loads(await socket.recv())
            assert hello["status"] == "connected", hello
            sent = hello.get("received_bytes", 0)
            until = len(SPEECH) if storm is None else rng.randrange(sent, len(SPEECH))
            while sent < until:
                await socket.send(SPEECH[sent : sent + PIECE_BYTES])
                sent += PIECE_BYTES
            if storm is None:
                await socket.send('{"action": "flush"}')
                while True:
                    message = json.loads(await socket.recv())
                    if message.get("is_final"):
                        assert message["utterance"] not in said, "told twice"
                        said[message["utterance"]] = message["text"]
                        if message["ending"] == "flush":
                            return [text for _, text in sorted(said.items()) if text]
            socket.transport.abort()
        query = {"session_id": hello["session_id"], "received": 0}
        await storm.wait()


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
    expected = [m["text"] for m in await asyncio.to_thread(stream, loaded, [SPEECH]) if m.get("is_final") and m["text"]]
    storms = [asyncio.Barrier(CLIENTS) for _ in range(BREAKS)]
    talks = [asyncio.create_task(_talk(loaded, storms)) for _ in range(CLIENTS)]
    await asyncio.gather(*(_stranger(loaded, number) for number in range(STRANGERS)), _crowd(loaded))
    found = await asyncio.gather(*talks)
    assert [said for said in found if " ".join(said) != " ".join(expected)] == []
    note(f"{CLIENTS} clients resume together {BREAKS} times beside {STRANGERS} wrong ids and {CROWD} times the same id")
