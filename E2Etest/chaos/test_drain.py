"""SIGTERM in the middle of work: whatever was begun is brought to its end, and then the server is gone."""

import asyncio

import httpx
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from E2Etest.chaos import uploads
from E2Etest.drive import recordings
from E2Etest.drive.process import ready
from E2Etest.drive.session import data, open_session, receive
from E2Etest.drive.wire import form

pytestmark = [pytest.mark.websocket, pytest.mark.guarantee("drain")]

UPLOADS, SPEAKERS = 16, 4
SPOKEN_S = 2.5


def _speak(server, speech, in_the_middle):
    """The last two messages and the close code of a speaker that says no more."""
    with open_session(server) as socket:
        socket.send(data(speech[: int(SPOKEN_S * 16_000)]))
        kept = [receive(socket)]
        in_the_middle()
        try:
            while True:
                kept.append(receive(socket))
        except ConnectionClosed as closed:
            return *kept[-2:], closed.rcvd.code


async def _unready_s(server, since_s):
    """Seconds until the server takes no more work: it says so, or does not listen any more."""
    async with httpx.AsyncClient(base_url=server.base, timeout=60) as prober:
        try:
            while (await prober.get("/readyz", headers={"Connection": "close"})).status_code == 200:
                pass
        except httpx.TransportError:
            pass
    return asyncio.get_running_loop().time() - since_s


async def _under_work(server, body, speech):
    """Half of the uploads are whole, half in the middle of their body, and all speakers in the middle of a word."""
    loop, middle = asyncio.get_running_loop(), asyncio.Semaphore(0)
    speakers = [
        asyncio.create_task(
            asyncio.to_thread(_speak, server, speech, lambda: loop.call_soon_threadsafe(middle.release))
        )
        for _ in range(SPEAKERS)
    ]
    for _ in range(SPEAKERS):
        await middle.acquire()
    halves = [await uploads.begun(server, body, len(body) // 2) for _ in range(UPLOADS // 2)]
    wholes = [await uploads.begun(server, body) for _ in range(UPLOADS // 2)]
    await asyncio.to_thread(server.wait_for, lambda health: health["queue"]["running"] > 0)
    return speakers, halves, wholes


async def test_sigterm_under_uploads_and_live_sessions_loses_nothing(tmp_path, measured, note):
    """Unready at once; every upload gets its words, also one that was still coming in; every speaker its final, the
    advice to connect again and 1001; exit code 0."""
    speech = np.concatenate([recordings.samples(), np.zeros(14_400, np.int16)])
    body = form(recordings.wav(np.tile(speech, 3)))
    loop = asyncio.get_running_loop()
    with ready(tmp_path / "log") as server:
        words = (await uploads.sent(server, body)).body["text"]
        speakers, halves, wholes = await _under_work(server, body, speech)

        server.process.terminate()
        told_s = loop.time()
        unready_s = await _unready_s(server, told_s)
        for _, writer in halves:
            writer.write(body[len(body) // 2 :])
        answers = await asyncio.gather(*(uploads.answer(*connection) for connection in halves + wholes))
        ends = await asyncio.gather(*speakers)
        code = await asyncio.to_thread(server.process.wait, 120)
        ended_s = loop.time() - told_s

    assert recordings.sample()[1] in words
    assert [answer.body.get("text") for answer in answers] == [words] * UPLOADS
    for final, advice, close in ends:
        assert (advice["status"], close) == ("reconnect", 1001)
        assert (final["is_final"], final["ending"], final["end"]) == (True, "close", SPOKEN_S)
    assert len({final["text"] for final, *_ in ends} - {""}) == 1
    assert code == 0
    assert "Traceback" not in server.log()
    measured("unready_s", unready_s)
    # The server itself stops waiting after 30 s; this limit only shows that it exited then.
    measured("exit_s", ended_s)
    note(f"{UPLOADS} of {UPLOADS} uploads answered, {SPEAKERS} of {SPEAKERS} finals received")
