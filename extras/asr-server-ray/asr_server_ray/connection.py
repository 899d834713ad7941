"""The app's end of a connection to an engine replica: many rows at once, each with its answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from loguru import logger

from asr_server.engine.protocol import Tokens
from asr_server_ray import frames
from asr_server_ray.frames import FrameWriter
from asr_server_ray.messages import Address, Answer, RowCall
from asr_server_ray.rows import ReplicaLost

_CONNECT_S = 2.0


class Connection:
    """A connection, made by `opened()`. `ended`: the replica has gone. Used from one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.ended = False
        self._writer, self._out = writer, FrameWriter(writer)
        self._answers: dict[int, asyncio.Queue[Answer | None]] = {}
        self._reading = asyncio.create_task(self._read(reader))

    async def answers(self, call: RowCall) -> AsyncGenerator[Answer, None]:
        """Yield the replica's answers to a row, up to its result or error. Closing it cancels the row.

        Raises `ReplicaLost`.
        """
        answers = self._answers[call.number] = asyncio.Queue()
        answer: Answer | None = None
        try:
            if self.ended:
                raise ReplicaLost("the connection has ended")
            await self._out.send(call)
            while answer is None or isinstance(answer, Tokens):
                if (answer := await answers.get()) is None:
                    raise ReplicaLost("the connection has ended")
                yield answer
        except OSError as error:
            raise ReplicaLost(str(error)) from error
        finally:
            del self._answers[call.number]
            if not self.ended and (answer is None or isinstance(answer, Tokens)):
                self._out.write(call.number)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                number, answer = await frames.read(reader)
                if number in self._answers:
                    self._answers[number].put_nowait(answer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the replica has ended
        except Exception:
            logger.exception("a replica sent what cannot be read")
        finally:
            self.ended = True
            for answers in self._answers.values():
                answers.put_nowait(None)
            self._writer.close()


async def opened(address: Address) -> Connection:
    """Return a new connection. Raises `OSError`."""
    async with asyncio.timeout(_CONNECT_S):
        reader, writer = await asyncio.open_connection(address.host, address.port, limit=frames.BUFFER_BYTES)
    frames.watch_peer(writer)
    writer.write(address.token)
    return Connection(reader, writer)
