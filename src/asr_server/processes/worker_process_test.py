"""Requests to a process, a script here: their order, and those that are cancelled, fail or get no answer."""

import asyncio
import sys

import pytest

from asr_server.core.errors import SpeakersUnavailable
from asr_server.processes import worker_process
from asr_server.processes.worker_process import Work, WorkerProcess

# Answers with the number of the request, what is dropped, and how many requests came so far. A number below 0 ends it,
# 99 gets no answer, and 55 gets one that is no message.
SCRIPT = """
import json, struct, sys, time
came = 0
while header := sys.stdin.buffer.read(8):
    sizes = struct.unpack("<II", header)
    request = json.loads(sys.stdin.buffer.read(sizes[0]))
    sys.stdin.buffer.read(sizes[1])
    came += 1
    if request["number"] < 0:
        sys.exit(1)
    time.sleep(60 if request["number"] == 99 else 0.01)
    text = b"?" if request["number"] == 55 else json.dumps({**request, "came": came}).encode()
    sys.stdout.buffer.write(struct.pack("<II", len(text), 0) + text)
    sys.stdout.buffer.flush()
"""


WORK = Work("asr_server.features.speakers.diarization.worker", "does something", SpeakersUnavailable)


@pytest.fixture
async def running():
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-S", "-c", SCRIPT), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    running = WorkerProcess(WORK, child)
    yield running
    await running.end()


async def ask(running, number):
    return (await running.request({"number": number})).content


async def test_a_cancelled_caller_leaves_at_once_and_the_next_one_gets_its_own_answer(running):
    """The request was under way or waited, and may be cancelled more than once."""
    under_way, waiting = [asyncio.create_task(ask(running, number)) for number in (1, 2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for task in (under_way, waiting, under_way):
        task.cancel()
    await asyncio.wait([under_way, waiting])
    assert under_way.cancelled()
    assert waiting.cancelled()
    found = await ask(running, 3)
    assert (found["number"], found["came"]) == (3, 2)  # the second one was never sent


async def test_the_process_is_told_once_what_is_not_needed_any_more(running):
    running.drop(7)
    running.drop(8)
    assert [(await ask(running, 1))["dropped"] for _ in range(2)] == [[7, 8], []]


@pytest.mark.parametrize("fatal", [-1, 55, 99])
async def test_all_that_wait_are_told_that_the_process_was_lost(running, fatal, monkeypatch):
    """The process ends, sends an invalid answer, or sends none in time and is killed."""
    await ask(running, 1)
    monkeypatch.setattr(worker_process, "_LATE_S", 0.2)
    found = await asyncio.gather(*(ask(running, number) for number in (fatal, 2, 3)), return_exceptions=True)
    assert [type(each) for each in found] == [SpeakersUnavailable] * 3
    assert not running.is_running


async def test_ending_the_process_ends_what_is_under_way(running):
    hanging = asyncio.create_task(ask(running, 99))
    await asyncio.sleep(0.05)
    await running.end()
    with pytest.raises(SpeakersUnavailable):
        await hanging


async def test_a_process_that_cannot_be_started(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(SpeakersUnavailable, match="cannot be started"):
        await WorkerProcess.start(WORK, "embedded")
