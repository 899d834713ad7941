"""Long texts as jobs, spoken by eSpeak NG, with the Python client."""

import asyncio

from asr_server.client.jobs import AsyncJobClient
from E2Etest.contract.test_jobs import events


def test_chapters_are_spoken_in_order(live_server):
    """Stated, or found by the headings of a text: the same words are the same audio."""
    stated = [("One", "One\n\nIt begins."), ("Two", "Two\n\nIt ends.")]

    async def by_client():
        async with AsyncJobClient(live_server.base, key=live_server.key) as client:
            job = await client.submit_text(stated, format="wav", voice="nova")
            states = [status async for status in client.watch(job.id)]
            assert states[-1].error is None
            return b"".join([piece async for piece in client.stream_result(job.id)])

    fields = {"split_chapters": True, "voice": "nova", "response_format": "wav"}
    sent = live_server.client.post(
        "/v1/audio/speech/jobs", json={"input": "# One\nIt begins.\n# Two\nIt ends."} | fields
    )
    identity = sent.json()["id"]
    events(live_server, identity)
    assert live_server.client.get(f"/v1/jobs/{identity}/result").content == asyncio.run(by_client())
