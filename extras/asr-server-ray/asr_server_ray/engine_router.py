"""Ray Serve's request router for the engine, by which the app learns what the replicas publish.

Ray Serve pickles this module by value, so it holds no state.
"""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import RequestRouter

from asr_server_ray import routing
from asr_server_ray.messages import ReplicaStats


class EngineRouter(RequestRouter):  # type: ignore[misc]  # Ray has no types
    """Hands on which replicas run, and what they publish. Rows do not pass it."""

    def update_replicas(self, replicas: list[Any]) -> None:
        """These run now, or have published something."""
        super().update_replicas(replicas)
        routing.OF_PROCESS.update(
            {one.replica_id.unique_id: one.routing_stats.get("stats", ReplicaStats()) for one in replicas}
        )

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:
        """Any of them."""
        return [candidate_replicas]
