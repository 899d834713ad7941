"""The order in which callers get a share."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, suppress

import pytest

from asr_server.processes.caller_work import FairShares

pytestmark = pytest.mark.asyncio


class Crowd:
    """Callers that take units of the same shares, in tasks of their own."""

    def __init__(self, shares: FairShares) -> None:
        self.shares = shares
        self.got: list[str] = []

    async def take(self, caller: str, units: int = 1) -> tuple[asyncio.Task[None], asyncio.Event]:
        """A task that takes units and keeps them until the event is set or it is cancelled."""
        done = asyncio.Event()

        async def hold() -> None:
            async with self.shares.taken(caller, units):
                self.got.append(caller)
                await done.wait()

        task = asyncio.create_task(hold())
        await settle()
        return task, done


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_who_holds_least_comes_first() -> None:
    """The waiting caller that holds the least is next, however late it came, then the first to come."""
    crowd = Crowd(FairShares(3, 3))
    first = await crowd.take("a")
    others = [await crowd.take("a"), await crowd.take("b")]
    waiting = [await crowd.take(caller) for caller in ("a", "b", "c", "d")]
    del crowd.got[:]
    for _, done in (first, *others):
        done.set()
        await settle()
    assert crowd.got == ["c", "a", "b"]
    for task, _ in waiting:
        task.cancel()


async def test_what_does_not_fit_lets_others_pass() -> None:
    """A small file does not wait for a large one; the large one is served when there is room for it."""
    crowd = Crowd(FairShares(10, 10))
    small, large = await crowd.take("a", 4), await crowd.take("b", 7)
    passing = await crowd.take("c", 5)
    assert crowd.got == ["a", "c"]
    for _, done in (small, passing):
        done.set()
    await settle()
    assert crowd.got == ["a", "c", "b"]
    large[1].set()


@pytest.mark.parametrize("granted", [False, True])
async def test_who_leaves_holds_nothing(granted: bool) -> None:
    """A waiter that is cancelled takes nothing with it, also in the moment in which its turn comes."""
    crowd = Crowd(FairShares(1, 1))
    _, done = await crowd.take("a")
    waiting, _ = await crowd.take("b")
    if granted:
        done.set()
        await asyncio.sleep(0)  # "a" gives back and grants; the waiter has not run since
    waiting.cancel()
    done.set()
    await settle()
    async with asyncio.timeout(5), crowd.shares.taken("c"):
        assert crowd.got == ["a"]


async def test_the_total_is_never_exceeded() -> None:
    """In 300 random turns of four callers no more than the total is held, one caller among others never holds more than
    the shared part, and everybody is served."""
    rng, shares, held = random.Random(1), FairShares(6, 9), dict.fromkeys("abcd", 0)

    async def turn(caller: str) -> None:
        units = rng.randint(1, 3)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(shares.taken(caller, units))
            held[caller] += units
            assert sum(held.values()) <= 9
            assert held[caller] <= 6
            for _ in range(rng.randint(0, 3)):
                await asyncio.sleep(0)
            held[caller] -= units

    async with asyncio.timeout(30):
        await asyncio.gather(*(turn(rng.choice("abcd")) for _ in range(300)))
    assert not any(held.values())


async def test_urgent_waiters_go_first_and_the_others_are_not_starved() -> None:
    """All callers wait for their next turn as soon as they have had one, so that all always wait."""
    turns, order = FairShares(1, 1), []

    async def take(name: str) -> None:
        while len(order) < 60:
            await turns.take("", urgent=name.isupper())
            order.append(name)
            await asyncio.sleep(0)
            turns.give_back("")

    await asyncio.gather(*map(take, "abXYZ"))
    assert "".join(order[1:12]) == "XYZXbYZXYaZ"
    shares = {name: order.count(name) for name in "abXYZ"}
    assert shares["a"] + shares["b"] == pytest.approx(len(order) / 5, abs=2)
    assert max(shares[name] for name in "XYZ") - min(shares[name] for name in "XYZ") <= 2


async def test_callers_take_turns() -> None:
    """One asks from six sockets, and another from one."""
    turns, order = FairShares(1, 1), []

    async def take(caller: str) -> None:
        while len(order) < 40:
            await turns.take(caller, urgent=True)
            order.append(caller)
            await asyncio.sleep(0)
            turns.give_back(caller)

    await asyncio.gather(*map(take, "aaaaaab"))
    assert order.count("b") >= 18


async def test_a_turn_of_somebody_who_has_gone_is_passed_on() -> None:
    """The turn may come in the moment in which its caller went."""
    turns = FairShares(1, 1)
    await turns.take("")
    waiting = [asyncio.create_task(turns.take("", urgent=urgent)) for urgent in (True, False, False)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    turns.give_back("")
    waiting[0].cancel()
    with suppress(asyncio.CancelledError):
        await waiting[0]
    async with asyncio.timeout(5):
        await waiting[2]
