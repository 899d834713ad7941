"""Ray Serve's request router for the engine, by which the app learns what the replicas publish.

Ray Serve pickles this module by value, so it holds no state.
"""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import RequestRouter

from asr_server_ray import routing
from asr_server_ray.messages import ReplicaStats


class EngineRouter(RequestRouter):  # type: ignore[misc]  # Ray has no types
    """Passes on which replicas run, and what they publish. Rows do not pass it."""

    def update_replicas(self, replicas: list[Any]) -> None:
        """Note the replicas that run now, with what they have published."""
        super().update_replicas(replicas)
        routing.OF_PROCESS.update(
            {one.replica_id.unique_id: one.routing_stats.get("stats", ReplicaStats()) for one in replicas}
        )

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:
        """Return all candidates: any of them will do."""
        return [candidate_replicas]
