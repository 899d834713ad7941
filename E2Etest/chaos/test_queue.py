"""Faults in the engine, one after the other on one server: they hurt their own row, and the next request is served."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from E2Etest.chaos.rig import Fault, at_rest, faulty, until

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.guarantee("queue"), pytest.mark.timeout(300)]

RAISED, NO_MEMORY = (500, "transcription_failed"), (503, "engine_out_of_memory")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with faulty(tmp_path_factory.mktemp("queue") / "log") as server:
        yield server


def _together(server, sample, prompts, hang=Fault.HANG_WHILE_DECODING):
    """What requests with these prompts get that all wait behind a hanging one, and so enter the batch together."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        with server.hanging(sample[0], hang) as first:
            works = [pool.submit(server.transcribe, sample[0], prompt=prompt) for prompt in prompts]
            server.wait_for(lambda health: health["queue"]["interactive"] == len(prompts))
        return [work.result() for work in [*works, first]]


def _served(server, sample, answers):
    """How many of the answers are the words; the next request is answered too, and then nothing is left."""
    assert server.transcribe(sample[0]).json()["text"] == sample[1]
    server.wait_for(at_rest)
    assert server.client.get("/readyz").status_code == 200
    return [answer.json().get("text") for answer in answers].count(sample[1])


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (Fault.RAISE_AT_ADMISSION, RAISED),
        (Fault.RAISE_IN_PREFILL, RAISED),
        (Fault.RAISE_WHILE_DECODING, RAISED),
        (Fault.MEMORY_IN_PREFILL, NO_MEMORY),
        (Fault.MEMORY_WHILE_DECODING, NO_MEMORY),
    ],
)
def test_a_fault_hurts_its_own_row(server, sample, note, fault, told):
    """Told with its code; the rows beside it and the next request get their words, and nothing is left."""
    answers = _together(server, sample, ["", "", fault, "", ""])
    at_fault = answers.pop(2)
    assert (at_fault.status_code, at_fault.json()["error"]["code"]) == told
    assert _served(server, sample, answers) == 5
    note(f"{fault}: the 5 others were served")


@pytest.mark.parametrize("fault", [Fault.HANG_AT_ADMISSION, Fault.HANG_WHILE_DECODING])
def test_a_hang_that_ends_costs_only_time(server, sample, note, fault):
    """The row that hung, those that waited and the next one get their words."""
    assert _served(server, sample, _together(server, sample, [""] * 5, fault)) == 6
    note(f"{fault}: all 6 were served")


@pytest.mark.parametrize("fault", [Fault.HANG_AT_ADMISSION, Fault.HANG_WHILE_DECODING])
async def test_a_caller_that_leaves_between_the_queue_and_its_result_is_no_fault(server, sample, note, fault):
    """Its row is out of the queue when it hangs up: whoever waits behind it is served, nothing is left or logged."""
    form = {"files": {"file": ("a.wav", sample[0])}, "data": {"model": "whisper-1", "prompt": fault}}
    logged = len(server.log())
    async with httpx.AsyncClient(base_url=server.base, timeout=60) as caller:
        with server.hangs_next():
            leaver = asyncio.create_task(caller.post("/v1/audio/transcriptions", **form))
            await asyncio.to_thread(server.wait_until_hanging)
            leaver.cancel()
            stayer = asyncio.create_task(asyncio.to_thread(server.transcribe, sample[0]))
            await asyncio.to_thread(until, lambda: "outcome=request_cancelled" in server.log()[logged:])
        answer = await stayer
    assert await asyncio.to_thread(_served, server, sample, [answer]) == 1
    assert "Traceback" not in server.log()[logged:]
    note(f"caller gone during {fault}: the next was served")
