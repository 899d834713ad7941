"""Ray Serve on this machine. Deploys the Serve config of a file as `serve deploy` does, and again after SIGHUP."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import ray
import yaml
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema


def main(path: Path) -> None:
    """Run until SIGTERM."""
    wake, ended = threading.Event(), threading.Event()
    ray.init(num_cpus=8, include_dashboard=False, object_store_memory=200 * 2**20, _node_ip_address="127.0.0.1")
    signal.signal(signal.SIGHUP, lambda *_: wake.set())
    signal.signal(signal.SIGTERM, lambda *_: (ended.set(), wake.set()))
    serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": int(os.environ["PORT"])})
    while not ended.is_set():
        _deploy(path)
        while not wake.wait(1.0):  # a signal may be delivered to another thread, which ends no wait
            pass
        wake.clear()
    serve.shutdown()
    ray.shutdown()


def _deploy(path: Path) -> None:
    """Deploy as the server of Ray's dashboard does for `serve deploy`."""
    config = ServeDeploySchema.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    _get_global_client().deploy_apps(config)
    # The status is the old one until the controller has built the application again.
    time.sleep(2)
    while (status := serve.status().applications[config.applications[0].name]).status != "RUNNING" or any(
        set(deployment.replica_states) - {"RUNNING"} for deployment in status.deployments.values()
    ):
        if status.status == "DEPLOY_FAILED":
            sys.exit(status.message)
        time.sleep(0.2)
    print("deployed", {name: one.replica_states for name, one in status.deployments.items()}, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
