"""Webhooks of a server that is killed again and again while it sends them."""

import random
import time

import pytest

from E2Etest.contract.test_jobs import submit
from E2Etest.contract.test_webhooks import settled
from E2Etest.process import ServerProcess, running
from E2Etest.receiver import receiving

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.timeout(1_800)]

KILLS = 100


def test_each_request_arrives_however_often_the_server_is_killed(tmp_path, sample, fake_sample):
    """At least once and signed; the result of a job before its state, also when either is sent again."""
    jobs, chance = [], random.Random(1)
    with receiving() as receiver:
        settings = {"STATE_DIR": str(tmp_path / "state"), **receiver.settings(), **fake_sample}
        for number in range(KILLS):
            receiver.delay_s = 0.1
            server = ServerProcess(tmp_path / "log", shared_log=True, **settings)
            try:
                server.wait_until_live()
                seen = len(receiver.paths)
                urls = {"output_url": f"{receiver.url}/result/{number}", "callback_url": f"{receiver.url}/{number}"}
                jobs.append(submit(server, sample[0], response_format="text", **urls)["id"])
                give_up_s = time.monotonic() + 60
                # The kill is to meet either request, or the time before, between or after them.
                while len(receiver.paths) < seen + chance.randint(0, 2) and time.monotonic() < give_up_s:
                    time.sleep(0.01)
                time.sleep(chance.uniform(0, 0.2))
                server.process.kill()
            finally:
                server.stop()
        receiver.delay_s = 0.0
        with running(tmp_path / "last", **settings) as last:
            states = [[one["state"] for one in settled(last, job)["follow_ups"]] for job in jobs]
    assert states == [["done", "done"]] * KILLS
    assert {message["data"]["id"] for message in receiver.messages} == set(jobs)
    for number in range(KILLS):
        sent = [path for path in receiver.paths if path in (f"/{number}", f"/result/{number}")]
        assert sent == sorted(sent, key=lambda path: not path.startswith("/result"))
        assert len(set(sent)) == 2
    print(f"{len(receiver.paths)} requests for {2 * KILLS}")
