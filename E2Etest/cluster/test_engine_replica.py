"""An engine replica under Ray Serve by itself: the address that it publishes, and its end."""

import asyncio
import json

import numpy as np
import pytest

from asr_server.core import settings
from asr_server.engine.protocol import Tokens, Utterance
from asr_server_ray import connection
from asr_server_ray.messages import RowCall

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.timeout(600)]

_SPEECH = np.full(16_000 * 8, 0.3, np.float32)


@pytest.fixture
def replica(tmp_path):
    """The handle of one whose engine takes 0.3 s for a word, in a Ray of its own."""
    import ray
    from ray import serve

    from asr_server_ray.application import ServedEngine

    script = tmp_path / "script.json"
    script.write_text(json.dumps({"step_s": 0.3}))
    chosen = settings.load(_env_file=None, model_id="fake", fake_engine_script=script)
    ray.init("local", num_cpus=1, include_dashboard=False, _node_ip_address="127.0.0.1")
    try:
        serve.start(proxy_location="Disabled")
        deployment = serve.deployment(ServedEngine, name="engine", graceful_shutdown_timeout_s=30)
        yield serve.run(deployment.bind(chosen, 1), route_prefix=None)
        serve.shutdown()
    finally:
        ray.shutdown()


def test_a_replica_that_is_removed_finishes_its_rows(replica):
    """Ray Serve knows nothing of rows: the replica waits for them before it ends. It listens at its node's address."""
    import ray
    from ray import serve

    address = replica.describe.remote().result().stats.address
    assert address.host == ray.util.get_node_ip_address()

    async def scenario():
        connected = await connection.opened(address)
        answers = []
        async for answer in connected.answers(RowCall(1, Utterance(_SPEECH, stream=True), "", False, "app", 0.0)):
            answers.append(answer)
            if len(answers) == 2:
                await asyncio.to_thread(serve.delete, "default")
        return answers

    *told, result = asyncio.run(scenario())
    assert all(isinstance(answer, Tokens) for answer in told)
    assert "".join(tokens.text for tokens in told) == result.text
    assert len(result.text.split()) > 10
    with pytest.raises(ConnectionRefusedError):
        asyncio.run(connection.opened(address))
