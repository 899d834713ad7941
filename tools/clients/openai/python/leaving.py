"""Callers that leave in the middle, and time limits of the client: items 11 and 15."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import openai
from world import (
    arguments,
    async_client,
    case,
    check_freed,
    client,
    create,
    failure,
    idle,
    name_request,
    outcomes,
    recording,
)

BEGUN_WITHIN_S = 60.0


def _begun() -> Any:
    """A stream of a long recording behind its first event; the server is at work on the rest."""
    stream = create(client("slow"), recording("minute"), stream=True)
    assert next(stream).type == "transcript.text.delta"
    assert not idle("slow")
    return stream


@case(11, "close")
def close():
    stream = _begun()
    left_s = time.monotonic()
    stream.close()
    check_freed("slow", left_s)


@case(11, "leave-block")
def leave_block():
    with _begun():
        left_s = time.monotonic()
    check_freed("slow", left_s)


@case(11, "cancel-task")
async def cancel_task():
    begun = asyncio.Event()

    async def read() -> None:
        async with async_client("slow") as at:
            stream = await at.audio.transcriptions.create(**arguments(recording("minute"), stream=True))
            async for _ in stream:
                begun.set()

    reading = asyncio.create_task(read())
    async with asyncio.timeout(BEGUN_WITHIN_S):
        await begun.wait()
    await _cancelled(reading)


@case(11, "cancel-plain")
async def cancel_plain():
    async def ask() -> None:
        async with async_client("slow") as at:
            await at.audio.transcriptions.create(**arguments(recording("minute")))

    asked = asyncio.create_task(ask())
    await asyncio.to_thread(_wait_for_work)
    await _cancelled(asked)


def _wait_for_work() -> None:
    give_up_s = time.monotonic() + BEGUN_WITHIN_S
    while idle("slow"):
        assert time.monotonic() < give_up_s, "the work was not begun"
        time.sleep(0.02)


async def _cancelled(task: asyncio.Task[None]) -> None:
    left_s = time.monotonic()
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        await asyncio.to_thread(check_freed, "slow", left_s)
        return
    raise AssertionError("the task was done before it was cancelled")


@case(15, "timeout")
def timeout():
    name, headers = name_request()
    impatient = client("slow").with_options(timeout=0.5, max_retries=1)
    error = failure(lambda: create(impatient, recording("minute"), extra_headers=headers))
    assert isinstance(error, openai.APITimeoutError)
    check_freed("slow", time.monotonic())
    assert outcomes("slow", name, 2) == ["request_cancelled"] * 2
