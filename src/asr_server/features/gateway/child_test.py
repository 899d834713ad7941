"""A worker whose gateway is gone, as a process of its own."""

import asyncio
import socket
import subprocess
import sys

from asr_server.core.settings import Settings
from asr_server.features.gateway.child import spawner

SCRIPT = """
import time
from asr_server.features.gateway.child import end_with_gateway
end_with_gateway()
time.sleep(30)
"""


def test_it_ends_with_its_standard_input():
    """The gateway holds the other end, which closes with it, however it ends."""
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        stdin=subprocess.DEVNULL,
        env={"PYTHONPATH": ":".join(sys.path)},
        timeout=60,
        check=False,
    )
    assert ended.returncode < 0


async def test_what_the_gateway_does_itself_is_off_in_the_worker(monkeypatch):
    """Quotas, the wait for load balancers and the request to move: else each would count or take place twice."""
    given = []

    async def start(*command, env, **options):
        given.append(env)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    limits = {"key_max_requests": 3, "key_rate": 7, "max_live_sessions": 2, "drain_delay_s": 5, "handover_s": 4}
    with socket.socket() as listener:
        await spawner(Settings(_env_file=None, model_id="demo", gateway_mode=True, **limits))(listener)
    (environment,) = given
    off = ("KEY_MAX_REQUESTS", "KEY_RATE", "DRAIN_DELAY_S", "HANDOVER_S")
    assert [float(environment[name]) for name in off] == [0, 0, 0, 0]
    assert int(environment["MAX_LIVE_SESSIONS"]) > 100_000
