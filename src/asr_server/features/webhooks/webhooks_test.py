"""Webhooks: what is sent, how it is signed, and what comes of the answers."""

import base64
import json
from dataclasses import replace

import pytest

from asr_server.features.webhooks.webhooks import Webhooks, signed_headers
from asr_server.jobs.record import FollowUp, JobRecord, new_id
from asr_server.net.outgoing_test import guarded
from asr_server.recordings.requests import Result, TranscriptionRequest


def test_the_signature_is_that_of_the_specification():
    """The example of the reference libraries of Standard Webhooks."""
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = signed_headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}', [key])
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    both = signed_headers("msg_1", 1, b"{}", [key, b"another key of at least 24"])["webhook-signature"].split()
    assert len({one.removeprefix("v1,") for one in both}) == 2


@pytest.mark.parametrize(
    ("status", "state"), [(b"204 A", "done"), (b"410 B", "failed"), (b"500 C", "waiting"), (b"302 D", "waiting")]
)
async def test_the_answer_decides_whether_it_is_sent_again(status, state):
    """The body is the job's, its signature is that of the bytes that were sent, and its id does not change."""
    key = bytes(range(24))
    async with guarded("intranet.test:{p}") as (server, client):
        server.answers["/in"] = [status, b"Content-Length: 0", b"", b""]
        url = f"http://intranet.test:{server.port}/in"
        webhooks = Webhooks(client, (key,))
        job = JobRecord(new_id(), TranscriptionRequest(), 1.0, follow_up=FollowUp("callback_url", url))
        job = replace(job.succeeded(Result(b"", "text/plain"), 9.0), ended_at=1_800_000_000.0)
        for _ in range(2):
            assert await webhooks.send(job, url) == state
        (line, headers, body), (_, again, _) = server.requests
        assert line == "POST /in HTTP/1.1"
        assert headers["webhook-id"] == again["webhook-id"]
        sent = json.loads(body)
        assert (sent["type"], sent["data"]["id"], sent["data"]["status"]) == ("job.succeeded", job.id, "succeeded")
        assert sent["timestamp"] == "2027-01-15T08:00:00+00:00"
        expected = signed_headers(f"msg_{job.id}", int(headers["webhook-timestamp"]), body, [key])
        assert headers["webhook-signature"] == expected["webhook-signature"]
