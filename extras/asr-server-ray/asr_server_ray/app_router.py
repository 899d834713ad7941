"""Ray Serve's request router for the app, which notes the replicas that run in `apps`.

Ray Serve pickles this module by value, so it holds no state.
"""

from __future__ import annotations

from typing import Any

from ray.serve.config import RequestRouterConfig

from asr_server_ray import apps

_Default: Any = RequestRouterConfig().get_request_router_class()


class AppRouter(_Default):  # type: ignore[misc]  # Ray has no types
    """Ray Serve's own choice of the app for a request."""

    def update_replicas(self, replicas: list[Any]) -> None:
        """Note the replicas that run now. One that is to end is not among them, and finishes its work."""
        super().update_replicas(replicas)
        apps.OF_PROCESS.update(one.replica_id.unique_id for one in replicas)
