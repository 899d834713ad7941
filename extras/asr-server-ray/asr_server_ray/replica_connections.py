"""The engine replicas that run, each reached over a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from asr_server.core.errors import EngineFailed, ShuttingDown
from asr_server_ray import connection
from asr_server_ray.connection import Connection
from asr_server_ray.messages import Address, Answer, RowCall
from asr_server_ray.routing import Routing
from asr_server_ray.rows import ReplicaLost

# Between two tries to reach a replica while none can be reached.
_PAUSE_S = 0.1


class ReplicaConnections:
    """Implements `rows.Replicas`. Used from one event loop."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self._connections: dict[Address, asyncio.Task[Connection]] = {}

    async def answers(self, call: RowCall) -> AsyncGenerator[Answer, None]:
        """Yield the answers of the replica that `Routing` chose. Waits until one can be reached."""
        try:
            connected = await self._connected(call)
            async with aclosing(connected.answers(call)) as answers:
                async for answer in answers:
                    if isinstance(answer, EngineFailed | ShuttingDown):  # of the replica, not of the app
                        raise ReplicaLost(answer.message)
                    yield answer
        except ReplicaLost:
            self._routing.broke_off(call)
            raise
        finally:
            self._routing.done(call)

    async def _connected(self, call: RowCall) -> Connection:
        while True:
            if (address := self._routing.choose(call)) is not None:
                try:
                    return await self._connection(address)
                except OSError:
                    self._routing.broke_off(call)
            await asyncio.sleep(_PAUSE_S)

    async def _connection(self, address: Address) -> Connection:
        """Return the connection to a replica, which is opened by its first row."""
        self._connections = {one: task for one, task in self._connections.items() if not _ended(task)}
        if address not in self._connections:
            self._connections[address] = asyncio.create_task(connection.opened(address))
        return await asyncio.shield(self._connections[address])


def _ended(task: asyncio.Task[Connection]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None or task.result().ended)
