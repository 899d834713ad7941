"""The option by which several processes serve the port."""

from contextlib import closing
from dataclasses import replace

import pytest

from asr_server import feature_list
from asr_server.core.settings import Settings
from asr_server.engine.capabilities import Capabilities
from asr_server.engine.cpu import CpuShare
from asr_server.engine.plan import PlanError
from asr_server.features.front_ends import NAME, supervisor

MACHINE = Capabilities(gpu=False, torch_cuda=False)


def _option(cores=2, **settings):
    chosen = Settings(_env_file=None, model_id="demo", **settings)
    resolved = feature_list.resolve(chosen, replace(MACHINE, cpu=CpuShare(cores, "")))
    return next(option for option in resolved.options if option.name == NAME)


@pytest.mark.parametrize(
    ("cores", "value"), [(1, ""), (2, ""), (4, ""), (5, ""), (6, "2"), (16, "7"), (18, "8"), (128, "8")]
)
def test_the_number_follows_the_cores(cores, value):
    """The engine and the system have two, and a front end two of the others."""
    assert _option(cores, workers="auto").value == value


def test_a_number_that_is_set_counts():
    """The number counts whatever the machine has; one process needs no others."""
    assert _option(2, workers=3).value == "3"
    assert not _option(64, workers=1).active
    assert not _option(64).active


@pytest.mark.parametrize("other", [{"gateway_mode": True}, {"engine_process": False}])
def test_what_excludes_several_processes(other):
    """By themselves there is one; asked for, the server does not start, with the reason."""
    (name,) = other
    assert name.upper() in _option(64, workers="auto", **other).reason
    with pytest.raises(PlanError, match=f"WORKERS=2: .*{name.upper()}"):
        _option(64, workers=2, **other)


def test_each_process_listens_at_the_same_port():
    """The processes have sockets of their own, at all addresses that the host has here."""
    first = supervisor.Port("localhost", 0)
    with closing(first), closing(supervisor.Port("localhost", first.port)) as second:
        addresses = [{bound.getsockname() for bound in port.sockets} for port in (first, second)]
        assert addresses[0] == addresses[1]
        assert {address[1] for address in addresses[0]} == {first.port}


def test_a_host_that_this_machine_does_not_have():
    """The system's reason is raised."""
    with pytest.raises(OSError, match="assign"):
        supervisor.Port("192.0.2.1", 0)
