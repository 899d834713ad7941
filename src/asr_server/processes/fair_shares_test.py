"""The order in which callers get a share."""

import asyncio
import random

import pytest

from asr_server.processes.caller_work import FairShares


async def _take(shares, got, caller, units=1):
    """Return a task that takes units and keeps them until it is cancelled, or waits to take them."""

    async def hold():
        async with shares.taken(caller, units):
            got.append(caller)
            await asyncio.Event().wait()

    task = asyncio.create_task(hold())
    await _settle()
    return task


async def _settle():
    """Let every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_who_holds_least_comes_first():
    """The waiting caller that holds the least is next, however late it came, then the first to come."""
    shares, got = FairShares(3, 3), []
    tasks = [await _take(shares, got, caller) for caller in "aababcd"]
    assert got == ["a", "a", "b"]
    for holding in tasks[:3]:
        holding.cancel()
        await _settle()
    assert got[3:] == ["c", "a", "b"]


async def test_what_does_not_fit_lets_others_pass():
    """A small file does not wait for a large one; the large one is served when there is room for it."""
    shares, got = FairShares(10, 10), []
    tasks = [await _take(shares, got, caller, units) for caller, units in (("a", 4), ("b", 7), ("c", 5))]
    assert got == ["a", "c"]
    tasks[0].cancel()
    tasks[2].cancel()
    await _settle()
    assert got == ["a", "c", "b"]


@pytest.mark.parametrize("granted", [False, True])
async def test_who_leaves_holds_nothing(granted):
    """A waiter that is cancelled takes nothing with it, also in the moment in which its turn comes."""
    shares, got = FairShares(1, 1), []
    holding, waiting = await _take(shares, got, "a"), await _take(shares, got, "b")
    if granted:
        holding.cancel()
        await asyncio.sleep(0)  # "a" gives back and grants; the waiter has not run since
    waiting.cancel()
    holding.cancel()
    async with asyncio.timeout(5), shares.taken("c"):
        assert got == ["a"]


async def test_the_total_is_never_exceeded():
    """Nor the part of one caller among others, in 300 random turns of four callers, and everybody is served."""
    rng, shares, held = random.Random(1), FairShares(6, 9), dict.fromkeys("abcd", 0)

    async def turn(caller):
        units = rng.randint(1, 3)
        async with shares.taken(caller, units):
            held[caller] += units
            assert sum(held.values()) <= 9
            assert held[caller] <= 6
            for _ in range(rng.randint(0, 3)):
                await asyncio.sleep(0)
            held[caller] -= units

    async with asyncio.timeout(30):
        await asyncio.gather(*(turn(rng.choice("abcd")) for _ in range(300)))
    assert not any(held.values())


async def _turns(callers, count):
    """Return their order. All wait for their next turn as soon as they have had one; capitals are urgent."""
    turns, order = FairShares(1, 1), []

    async def take(caller):
        while len(order) < count:
            await turns.take(caller, urgent=caller.isupper())
            order.append(caller)
            await asyncio.sleep(0)
            turns.give_back(caller)

    await asyncio.gather(*map(take, callers))
    return "".join(order)


async def test_callers_take_turns():
    assert (await _turns("AAAAAAB", 40)).count("B") >= 18


async def test_urgent_waiters_go_first_and_the_others_are_not_starved():
    order = await _turns("abXYZ", 60)
    assert order[1:12] == "XYZXbYZXYaZ"
    shares = {name: order.count(name) for name in "abXYZ"}
    assert shares["a"] + shares["b"] == pytest.approx(len(order) / 5, abs=2)
    assert max(shares[name] for name in "XYZ") - min(shares[name] for name in "XYZ") <= 2
