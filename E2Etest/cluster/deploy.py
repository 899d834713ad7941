"""Ray Serve on this machine. Deploys the Serve config of a file as `serve deploy` does, and again after SIGHUP."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema

from asr_server_ray.application import NAME, QUIET


def main(path: Path) -> None:
    """Run until SIGTERM."""
    wake, ended = threading.Event(), threading.Event()
    ray.init(num_cpus=8, include_dashboard=False, object_store_memory=200 * 2**20, _node_ip_address="127.0.0.1")
    signal.signal(signal.SIGHUP, lambda *_: wake.set())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: (ended.set(), wake.set()))
    serve.start(
        proxy_location="HeadOnly",
        http_options={"host": "127.0.0.1", "port": int(os.environ["PORT"])},
        logging_config=QUIET,
    )
    while not ended.is_set():
        _deploy(json.loads(path.read_text(encoding="utf-8")))
        while not wake.wait(1.0):  # a signal may be delivered to another thread, which ends no wait
            pass
        wake.clear()
    serve.shutdown()
    ray.shutdown()


def _deploy(config: dict[str, Any]) -> None:
    """Deploy as the server of Ray's dashboard does for `serve deploy`."""
    _get_global_client().deploy_apps(ServeDeploySchema.model_validate(config))
    # The status is the old one until the controller has built the application again.
    time.sleep(2)
    while (status := serve.status().applications[NAME]).status != "RUNNING" or any(
        set(deployment.replica_states) - {"RUNNING"} for deployment in status.deployments.values()
    ):
        if status.status == "DEPLOY_FAILED":
            sys.exit(status.message)
        time.sleep(0.2)
    print("deployed", {name: one.replica_states for name, one in status.deployments.items()}, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
