"""The order in which callers get a share."""

import asyncio
import random

import pytest

from asr_server.processes.caller_work import FairShares


class Crowd:
    """Callers that take units of the same shares, in tasks of their own."""

    def __init__(self, shares):
        self.shares, self.got = shares, []

    async def take(self, caller, units=1):
        """Return a task that takes units and keeps them until the event is set or it is cancelled."""
        done = asyncio.Event()

        async def hold():
            async with self.shares.taken(caller, units):
                self.got.append(caller)
                await done.wait()

        task = asyncio.create_task(hold())
        await settle()
        return task, done


async def settle():
    """Let every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_who_holds_least_comes_first():
    """The waiting caller that holds the least is next, however late it came, then the first to come."""
    crowd = Crowd(FairShares(3, 3))
    holding = [await crowd.take(caller) for caller in ("a", "a", "b")]
    waiting = [await crowd.take(caller) for caller in ("a", "b", "c", "d")]
    del crowd.got[:]
    for _, done in holding:
        done.set()
        await settle()
    assert crowd.got == ["c", "a", "b"]
    for task, _ in waiting:
        task.cancel()


async def test_what_does_not_fit_lets_others_pass():
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
async def test_who_leaves_holds_nothing(granted):
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
    """One asks from six sockets, and another from one."""
    assert (await _turns("AAAAAAB", 40)).count("B") >= 18


async def test_urgent_waiters_go_first_and_the_others_are_not_starved():
    order = await _turns("abXYZ", 60)
    assert order[1:12] == "XYZXbYZXYaZ"
    shares = {name: order.count(name) for name in "abXYZ"}
    assert shares["a"] + shares["b"] == pytest.approx(len(order) / 5, abs=2)
    assert max(shares[name] for name in "XYZ") - min(shares[name] for name in "XYZ") <= 2
