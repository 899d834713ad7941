"""Ray Serve's own choice of a replica, which also notes the replicas that run."""

from __future__ import annotations

from typing import Any

from ray.serve.config import RequestRouterConfig

from asr_server_ray import replicas

_Default: Any = RequestRouterConfig().get_request_router_class()


class Router(_Default):  # type: ignore[misc]  # Ray has no types
    """Notes the replicas that get new requests: a replica that Ray Serve stops is not among them."""

    def update_replicas(self, running: list[Any]) -> None:
        """Choose among these replicas from now on."""
        super().update_replicas(running)
        replicas.running = frozenset(replica.replica_id.unique_id for replica in running)
