"""`asr-server cluster`: the server as a Ray Serve application, on this machine."""

from __future__ import annotations

import argparse
import importlib.util

from pydantic import ValidationError

from asr_server.cli.failure import UsageError
from asr_server.core import settings as settings_module
from asr_server.core.environment import prefer
from asr_server.core.settings import SettingsError
from asr_server_ray.options import ClusterOptions, conflicts

EXAMPLES = """\
examples:
  MODEL_ID=demo asr-server cluster
  asr-server cluster --replicas 4 --gpus 1
  asr-server cluster --replicas 1 --max-replicas 8 --gpus 1

All other settings are environment variables, or lines of .env: docs/run/configuration.md.
docs/run/cluster.md has the rest.
"""

_OPTIONS = ("replicas", "max_replicas", "apps", "cpus", "gpus", "upscale_delay_s", "downscale_delay_s")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.epilog = EXAMPLES
    parser.add_argument("--replicas", type=int, default=2, help="engine replicas, each with its own model (2)")
    parser.add_argument("--max-replicas", type=int, default=0, help="up to which their number follows the load (off)")
    parser.add_argument("--apps", type=int, default=1, help="processes with the protocols and live sessions (1)")
    parser.add_argument("--cpus", type=float, default=1.0, help="CPUs of a replica, and threads of its engine (1)")
    parser.add_argument("--gpus", type=float, default=0.0, help="GPUs of a replica; 0.5 puts two on one (0: CPU)")
    parser.add_argument(
        "--upscale-delay-s", type=float, default=30.0, help="how long more are needed before one is added (30)"
    )
    parser.add_argument(
        "--downscale-delay-s", type=float, default=600.0, help="how long fewer are enough before one is removed (600)"
    )
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    try:
        options = ClusterOptions.model_validate({name: getattr(parsed, name) for name in _OPTIONS})
    except ValidationError as error:
        raise UsageError("; ".join(_line(one) for one in error.errors())) from None
    settings = settings_module.load()
    if found := list(conflicts(settings, options)):
        raise SettingsError("\n".join(found))
    if importlib.util.find_spec("ray") is None:
        raise UsageError("Ray is not installed: run `make cluster`, or pip install ./extras/asr-server-ray.")
    # Read by Ray when it is imported, and by the processes that it starts.
    prefer("RAY_USAGE_STATS_ENABLED", "0")
    prefer("RAY_SERVE_USE_GRPC_BY_DEFAULT", "1")
    # Ray's proxy forwards a request without another thread.
    prefer("RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP", "0")
    # Ray's default of 15 leaves the engines what any other process of the machine does not want.
    prefer("RAY_worker_niceness", "0")
    # A proxy that has ended is started again after three failed checks.
    prefer("RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S", "1")
    # Ray's default of 5 s is too little for a machine that is busy, and the start then fails.
    prefer("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")
    from asr_server_ray import local

    return local.run(settings, options, max(1.0, options.most_replicas * options.cpus))


def _line(error: object) -> str:
    assert isinstance(error, dict)
    where = " ".join(f"--{str(part).replace('_', '-')}" for part in error["loc"])
    return f"{where} {error['msg'].removeprefix('Value error, ')}".strip()
