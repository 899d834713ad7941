"""Health, whatever the engine does."""

from contextlib import closing
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from asr_server.core.errors import Overloaded
from asr_server.core.settings import Settings
from asr_server.engine import plan
from asr_server.engine.protocol import EngineInfo
from asr_server.ops import health
from asr_server.schedule.admission import Admission
from asr_server.schedule.thread import EngineThread

LIVE = MagicMock(waiting=0, times={}, __len__=lambda _: 0)


def test_what_loading_decided_takes_the_place_of_the_plan():
    """Before, the plan says that it is open; afterwards there is the number format, with its reason, once."""
    planned = (plan.Option("device", True, "cuda", "found"), plan.Option("dtype", True, "auto", "decided at load"))
    decided = plan.Option("dtype", True, "float16", "a T4")
    for options, expected in (((), planned), ((decided,), (planned[0], decided))):
        info = EngineInfo("qwen", "m", "cuda", "auto", options=options)
        services = SimpleNamespace(
            plan=SimpleNamespace(options=planned), infos=lambda info=info: {"": info}, drafting=None, live=LIVE
        )
        assert tuple(health.options_of(services)) == expected


def test_a_server_that_is_full_for_recordings_alone_is_ready():
    """A load balancer would send live sessions nowhere; one that is full for both is not ready."""
    batch = SimpleNamespace(loaded=True, unload=lambda: None)
    with closing(EngineThread(batch, idle_timeout_s=0)) as thread:
        services = SimpleNamespace(settings=Settings(_env_file=None, model_id="demo"), thread=thread, live=LIVE)
        vars(services).update(infos=dict, features=(), ready=True, draining=False)
        for admission, time_limit_s, reason in (
            (Admission(100.0), 1.0, "saturated"),
            (Admission(1_000.0, time_limit_s=1.0), 600.0, ""),
        ):
            services.admission = admission
            with admission.hold(time_limit_s=time_limit_s) as ticket:
                admission.measure(ticket, 95.0)
                with pytest.raises(Overloaded):
                    admission.check()
                assert health.not_ready(services) == reason
