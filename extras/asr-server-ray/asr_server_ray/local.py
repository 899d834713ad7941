"""A cluster on this machine: Ray with little memory and no dashboard, and the application."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import ray
from loguru import logger
from ray import serve

from asr_server.core.settings import Settings
from asr_server_ray.application import APP_DRAIN_S, NAME, QUIET, application
from asr_server_ray.options import ClusterOptions

_OBJECT_STORE_BYTES = 200 * 1024 * 1024
# Between two looks at Ray's processes.
_LOOK_S = 1.0
_FAILED = 70  # EX_SOFTWARE of sysexits.h: a supervisor starts the cluster again


def run(settings: Settings, options: ClusterOptions, cpus: float) -> int:
    """Serve until SIGTERM or SIGINT. `cpus`: those that the replicas may be given together.

    Ends the process with code 70 when one of Ray's own processes has ended, because nothing starts it again.
    """
    ended = threading.Event()
    ray.init(
        num_cpus=int(cpus),
        include_dashboard=False,
        object_store_memory=_OBJECT_STORE_BYTES,
        _node_ip_address="127.0.0.1",
    )
    # After Ray's own handler, which ends the process at once.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    try:
        address = {"host": settings.host, "port": settings.port}
        serve.start(proxy_location="HeadOnly", http_options=address, logging_config=QUIET)
        serve.run(application(settings, options), name=NAME, route_prefix="/")
        print(_announcement(settings, options), flush=True)
        while not ended.wait(_LOOK_S):
            _end_without_ray()
        asyncio.run(_shut_down())
    finally:
        ray.shutdown()
    return 0


async def _shut_down() -> None:
    """Drain the apps before Ray Serve shuts down, which ends the proxy first, and all connections with it.

    On one loop: the router of the handle has none of its own, by `RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP`.
    """
    try:
        await serve.get_app_handle(NAME).broadcast("drain").results_async(timeout_s=APP_DRAIN_S)
    except Exception as error:  # no app runs, or one does not end what it has
        logger.warning(f"the apps have not drained: {error}")
    await serve.shutdown_async()


def _end_without_ray() -> None:
    """End at once if a process that Ray was started with has ended: an orderly end would wait for it.

    `ray start --block` does the same with the processes of a node.
    """
    node = ray._private.worker._global_node
    if lost := [kind for kind, _ in node.dead_processes()]:
        logger.critical(f"the cluster ends, because a process of Ray has ended: {', '.join(lost)}")
        node.kill_all_processes(check_alive=False, allow_graceful=False)
        os._exit(_FAILED)


def _announcement(settings: Settings, options: ClusterOptions) -> str:
    address = f"http://{settings.host}:{settings.port}"
    return (
        f"{options.replicas} engine replicas serve at {address}\n"
        f"  page:         {address}/\n"
        f"  state:        curl {address}/health\n"
        f"  transcribe:   asr-server transcribe FILE\n"
        f"  live:         asr-server live --file FILE\n"
        f"  Ray:          RAY_AUTH_MODE=token ray status --address {ray.get_runtime_context().gcs_address}"
    )
