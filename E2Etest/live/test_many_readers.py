"""A speaker with 200 readers and one without, side by side on one server: the readers delay nobody."""

import asyncio
import json
import statistics
import time

import httpx
import pytest
from websockets.asyncio.client import connect

from E2Etest.drive import recordings
from E2Etest.drive.process import ready
from E2Etest.drive.session import data, pieces

pytestmark = [
    pytest.mark.websocket,
    pytest.mark.performance,
    pytest.mark.nightly,
    pytest.mark.integration,
    pytest.mark.timeout(600),
]

READERS, ROUNDS, SPOKEN_S = 200, 2, 12.0
_FRAME_S = 0.1


@pytest.fixture(scope="module")
def spoken():
    """Speech for one round, in frames of 0.1 s."""
    frames = pieces(data(recordings.samples()), int(2 * 16_000 * _FRAME_S))
    return (frames * int(SPOKEN_S / _FRAME_S / len(frames) + 1))[: int(SPOKEN_S / _FRAME_S)]


async def _speak(server, spoken, shared):
    """Speak at the pace of speech, with readers or without, and return the lags of all texts and the readers' texts."""
    lags, readers = [], []
    async with connect(server.live_url, max_size=None, compression=None) as socket:
        hello = json.loads(await socket.recv())
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=server.base, timeout=60, limits=limits) as client:
            if shared:
                link = (await client.post(f"/v1/live/{hello['session_id']}/share")).json()
                began = [asyncio.Event() for _ in range(READERS)]
                readers = [asyncio.create_task(_read(client, link["events"], event)) for event in began]
                await asyncio.gather(*(event.wait() for event in began))
            receiving = asyncio.create_task(_receive(socket, lags))
            began_s = time.monotonic()
            for number, frame in enumerate(spoken):
                await asyncio.sleep(began_s + number * _FRAME_S - time.monotonic())
                await socket.send(frame)
            await socket.send('{"action": "flush"}')
            said = await receiving
            await socket.close()
            return lags, said, await asyncio.gather(*readers)


async def _receive(socket, lags):
    finals = []
    while True:
        message = json.loads(await socket.recv())
        if "lag_ms" in message:
            lags.append(message["lag_ms"])
        if message.get("is_final"):
            finals += [message["text"]] if message["text"] else []
            if message["ending"] == "flush":
                return finals


async def _read(client, address, began):
    finals = []
    async with client.stream("GET", address) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                began.set()
                finals += [event["text"]] if event["type"] == "final" else []
    return finals


def test_two_hundred_readers_of_a_session_do_not_delay_its_speaker(tmp_path, spoken):
    """The lag of partials and finals with them and without, in turns. Every reader gets every final."""
    lags = {True: [], False: []}
    with ready(tmp_path / "log", LOG_LEVEL="WARNING", WS_RESUME_S="0") as server:
        for _ in range(ROUNDS):
            for shared in (False, True):
                found, said, read = asyncio.run(_speak(server, spoken, shared))
                lags[shared] += found
                assert read == [said] * (READERS if shared else 0)
    alone, with_readers = (statistics.median(lags[shared]) for shared in (False, True))
    late_alone, late = (statistics.quantiles(lags[shared], n=20)[-1] for shared in (False, True))
    print(f"lag, median and 95th percentile: {with_readers:.0f}, {late:.0f} ms; alone {alone:.0f}, {late_alone:.0f} ms")
    assert with_readers < 1.5 * alone
