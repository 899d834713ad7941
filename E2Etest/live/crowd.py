"""One of many live sessions at once."""

import asyncio
import json

from websockets.asyncio.client import connect

from E2Etest.drive.session import finals, pieces

_PIECE_BYTES = 16_000


async def spoken(server, body, ready=None, query=""):
    """Return the words of a session that sends what it lacks of `body`. `ready`: a barrier that it waits at first."""
    url = server.base.replace("http", "ws", 1) + "/ws/transcribe" + query
    async with connect(url, max_size=None, compression=None, open_timeout=60) as session:
        received = json.loads(await session.recv()).get("received_bytes", 0)
        if ready is not None:
            await ready.wait()
        for piece in pieces(body[received:], _PIECE_BYTES):
            await session.send(piece)
            await asyncio.sleep(0)
        await session.send(json.dumps({"action": "flush"}))
        messages = []
        while not messages or messages[-1].get("ending") != "flush":
            messages.append(json.loads(await session.recv()))
        return " ".join(text for text, *_ in finals(messages))
