"""What the gateway asks its worker, and what it makes of the answers."""

import pytest

from asr_server.core.settings import Settings
from asr_server.features.gateway.conftest import HEALTH
from asr_server.features.gateway.worker_client import GatewayWorkerClient


class Scripted(GatewayWorkerClient):
    """With an answer of its own."""

    def __init__(self, status, body):
        super().__init__(Settings(_env_file=None, model_id="demo"))
        self._answer = status, body

    async def body(self, connection, path):
        assert path == "/health"
        return self._answer


@pytest.mark.parametrize(
    ("changes", "has_work"),
    [
        ({}, False),
        ({"jobs": 1}, True),
        ({"queue": {**HEALTH["queue"], "audio_held_s": 1.0}}, True),
        ({"queue": {**HEALTH["queue"], "running": 1}}, True),
        ({"speech_queue": {"texts": 1}}, True),
    ],
)
async def test_work_that_keeps_a_worker(changes, has_work):
    """Recordings, jobs and texts that are being spoken."""
    assert await Scripted(200, {**HEALTH, **changes}).has_work(None) is has_work


async def test_a_worker_without_an_answer_counts_as_busy():
    for status, body in ((0, None), (503, HEALTH)):
        assert await Scripted(status, body).has_work(None)
