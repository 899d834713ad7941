"""Long texts as jobs over HTTP, spoken by eSpeak NG: taken, watched, fetched."""

import asyncio

import pytest

from asr_server.client.jobs import AsyncJobClient
from E2Etest.contract.test_jobs import events

TEXT = "It costs $5.20. Dr. Smith said so, and nobody minded."
ROUTE = "/v1/audio/speech/jobs"


@pytest.fixture(scope="module")
def speaking(start):
    with start(SPEECH="espeak") as server:
        yield server


def submit(server, **fields):
    answer = server.client.post(ROUTE, json=fields)
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"/v1/jobs/{answer.json()['id']}"
    return answer.json()


def test_a_job_says_what_the_request_says(speaking):
    """The samples of a short text are those of the speech route; the state counts its characters."""
    job = submit(speaking, input=TEXT, response_format="pcm")
    assert (job["status"], job["progress"]["characters"]) == ("queued", len(TEXT))
    last = events(speaking, job["id"])[-1]
    assert last["status"] == "succeeded"
    answer = speaking.client.get(f"/v1/jobs/{job['id']}/result")
    direct = speaking.client.post("/v1/audio/speech", json={"input": TEXT, "response_format": "pcm"})
    assert answer.content == direct.content
    assert answer.headers["content-type"] == "audio/pcm"
    assert answer.headers["content-disposition"] == 'attachment; filename="speech.pcm"'
    seconds = len(answer.content) / 48_000
    assert last["progress"] == {
        "done_s": pytest.approx(seconds, abs=0.001),
        "duration_s": pytest.approx(seconds, abs=0.001),
        "fraction": 1,
        "done_characters": len(TEXT),
        "characters": len(TEXT),
    }


def test_chapters_are_spoken_in_order(speaking):
    """Stated, or found by the headings of a text: the same words are the same audio."""
    stated = [{"title": "One", "text": "One\n\nIt begins."}, {"title": "Two", "text": "Two\n\nIt ends."}]

    async def by_client():
        async with AsyncJobClient(str(speaking.client.base_url)) as client:
            chapters = [(one["title"], one["text"]) for one in stated]
            job = await client.submit_text(chapters, format="wav", voice="nova")
            states = [status async for status in client.watch(job.id)]
            assert states[-1].error is None
            return b"".join([piece async for piece in client.stream_result(job.id)])

    text = "# One\nIt begins.\n# Two\nIt ends."
    job = submit(speaking, input=text, split_chapters=True, voice="nova", response_format="wav")
    events(speaking, job["id"])
    assert speaking.client.get(f"/v1/jobs/{job['id']}/result").content == asyncio.run(by_client())
