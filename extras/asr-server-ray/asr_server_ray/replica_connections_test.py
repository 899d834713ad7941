"""Both ends of the connections between an app and engine replicas, with scripted answers."""

import asyncio
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from asr_server.core.errors import EngineFailed, InvalidInput, Overloaded, ShuttingDown
from asr_server.engine.protocol import Finish, Hypothesis, Tokens, Utterance
from asr_server_ray import frames
from asr_server_ray.connection import opened
from asr_server_ray.messages import TOKEN_BYTES, Address, ReplicaStats, RowCall
from asr_server_ray.replica_connections import ReplicaConnections
from asr_server_ray.routing import Routing
from asr_server_ray.row_server import RowServer
from asr_server_ray.rows import ReplicaLost

TOKENS = Tokens((11,), (-0.1,), "turn")
RESULT = Hypothesis("turn", "English", (11,), (-0.1,), Finish.END, 13, 9, 1)
_PATIENCE_S = 20.0


class Replica:
    """Answers each row with the next of its answers; `...` waits until the row is cancelled or `go_on` is set."""

    def __init__(self, *answers, most_rows=4):
        self.answered, self.calls, self.cancelled = answers, [], 0
        self.go_on = asyncio.Event()
        self.server = RowServer(self._answers, most_rows)

    async def _answers(self, call):
        self.calls.append(call)
        try:
            for answer in self.answered:
                if answer is ...:
                    await self.go_on.wait()
                elif isinstance(answer, ArithmeticError):
                    raise answer
                else:
                    yield answer
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


def _call(number=1, seconds=1):
    audio = np.random.default_rng(number).random(16_000 * seconds, np.float32)
    return RowCall(number, Utterance(audio, stream=True), "", False, "app", 0.0)


@asynccontextmanager
async def _serving(**replicas):
    """The app's end of the connections to these replicas, and its routing."""
    routing = Routing()
    for replica in replicas.values():
        await replica.server.listen("127.0.0.1")
    routing.update({name: ReplicaStats(address=replica.server.address) for name, replica in replicas.items()})
    try:
        yield ReplicaConnections(routing), routing
    finally:
        for replica in replicas.values():
            await replica.server.drain(0)


async def _ask(connections, call):
    async with aclosing(connections.answers(call)) as answers:
        return [answer async for answer in answers]


async def _until(condition):
    async with asyncio.timeout(_PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - the replica's end sets no event
            await asyncio.sleep(0.001)


def test_each_row_gets_its_answers():
    """Many at once over one connection, with all their audio."""

    async def scenario():
        replica = Replica(TOKENS, RESULT, most_rows=40)
        async with _serving(a=replica) as (connections, _):
            calls = [_call(number, seconds=number % 7 * 5) for number in range(40)]
            answers = await asyncio.gather(*(_ask(connections, call) for call in calls))
            assert answers == [[TOKENS, RESULT]] * 40
            arrived = {call.number: call for call in replica.calls}
            assert all((arrived[call.number].item.audio == call.item.audio).all() for call in calls)
            assert len(connections._connections) == 1

    asyncio.run(scenario())


def test_the_error_of_a_row_arrives_with_its_fields():
    """It is an answer; what its caller is told is in it."""

    async def scenario():
        async with _serving(a=Replica(InvalidInput("bad", param="prompt"))) as (connections, _):
            (error,) = await _ask(connections, _call())
            assert (type(error), error.message, error.param) == (InvalidInput, "bad", "prompt")

    asyncio.run(scenario())


@pytest.mark.parametrize("end", [EngineFailed("lost the accelerator"), ShuttingDown("draining"), ZeroDivisionError()])
def test_a_replica_that_cannot_go_on_is_avoided(end):
    """The row is lost there, and the next one goes to another replica."""

    async def scenario():
        async with _serving(a=Replica(end), b=Replica(RESULT)) as (connections, _):
            with pytest.raises(ReplicaLost):
                await _ask(connections, _call(1))
            assert await _ask(connections, _call(2)) == [RESULT]

    asyncio.run(scenario())


def test_who_leaves_cancels_the_row_there():
    """Before or after its first answer, and the other rows go on."""

    async def scenario():
        replica = Replica(TOKENS, ..., RESULT)
        async with _serving(a=replica) as (connections, _):
            other = asyncio.create_task(_ask(connections, _call(1)))
            left = connections.answers(_call(2))
            assert await anext(left) == TOKENS
            await left.aclose()
            await _until(lambda: replica.cancelled == 1)
            replica.go_on.set()
            assert await other == [TOKENS, RESULT]

    asyncio.run(scenario())


def test_rows_of_a_replica_that_ends_are_lost_at_once():
    """All of them; the next row goes to another replica, and its connection is a new one."""

    async def scenario():
        ending, other = Replica(TOKENS, ...), Replica(RESULT)
        async with _serving(a=ending, b=other) as (connections, routing):
            published = routing.stats
            routing.update({"a": published["a"]})
            rows = [asyncio.create_task(_ask(connections, _call(number))) for number in (1, 2)]
            await _until(lambda: len(ending.calls) == 2)
            routing.update(published)
            ending.server._server.close()
            for writer in ending.server._connections.values():
                writer.transport.abort()
            for row in rows:
                with pytest.raises(ReplicaLost):
                    await row
            assert await _ask(connections, _call(3)) == [RESULT]
            assert list(connections._connections) == [other.server.address]
            await _until(lambda: ending.cancelled == 2)

    asyncio.run(scenario())


def test_a_row_waits_for_a_replica_that_can_be_reached():
    """One that has not published its address yet, and one whose process has just ended."""

    async def scenario():
        gone, fresh = Replica(RESULT), Replica(RESULT)
        async with _serving(fresh=fresh) as (connections, routing):
            published = routing.stats
            await gone.server.listen("127.0.0.1")
            nowhere = ReplicaStats(address=gone.server.address)
            await gone.server.drain(0)
            routing.update({"gone": nowhere, "later": ReplicaStats()})
            row = asyncio.create_task(_ask(connections, _call()))
            await asyncio.sleep(0.2)
            assert not row.done()
            routing.update({"gone": nowhere} | published)
            assert await row == [RESULT]

    asyncio.run(scenario())


def test_a_replica_that_drains_finishes_its_rows():
    """And takes no new ones."""

    async def scenario():
        replica = Replica(TOKENS, ..., RESULT)
        async with _serving(a=replica) as (connections, _):
            row = asyncio.create_task(_ask(connections, _call(1)))
            await _until(lambda: replica.calls)
            drained = asyncio.create_task(replica.server.drain(_PATIENCE_S))
            await asyncio.sleep(0)
            with pytest.raises(ReplicaLost, match="no more rows"):
                await _ask(connections, _call(2))
            assert not drained.done()
            replica.go_on.set()
            assert await row == [TOKENS, RESULT]
            await drained

    asyncio.run(scenario())


def test_more_rows_than_a_replica_takes_are_refused():
    """With the error of a server that is full."""

    async def scenario():
        replica = Replica(..., RESULT, most_rows=1)
        async with _serving(a=replica) as (connections, _):
            row = asyncio.create_task(_ask(connections, _call(1)))
            await _until(lambda: replica.calls)
            (error,) = await _ask(connections, _call(2))
            assert isinstance(error, Overloaded)
            replica.go_on.set()
            assert await row == [RESULT]

    asyncio.run(scenario())


def test_without_the_token_nothing_is_unpickled():
    """The connection ends, and the replica has got no row."""

    async def scenario():
        replica = Replica(RESULT)
        async with _serving(a=replica):
            stranger = await opened(replace(replica.server.address, token=bytes(TOKEN_BYTES)))
            with pytest.raises(ReplicaLost):
                await _ask(stranger, _call())
            assert not replica.calls

    asyncio.run(scenario())


def test_a_length_beyond_all_messages_ends_the_connection():
    """It is not waited for, nor is memory taken for it."""

    async def scenario():
        replica = Replica(RESULT)
        async with _serving(a=replica):
            address: Address = replica.server.address
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(address.token + (frames._MOST_BYTES + 1).to_bytes(4))
            async with asyncio.timeout(_PATIENCE_S):
                assert await reader.read() == b""
            writer.close()

    asyncio.run(scenario())
