"""Ray Serve's request router for the engine, which asks `routing` for the order.

Ray Serve pickles this module by value, so it holds no state.
"""

from __future__ import annotations

from typing import Any

from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter

from asr_server.cluster import routing
from asr_server.cluster.messages import ReplicaStats, RowCall


class EngineRouter(ConsistentHashRouter):  # type: ignore[misc]  # Ray has no types
    """Ray Serve's router for the engine, with the choice of `Routing`."""

    def update_replicas(self, replicas: list[Any]) -> None:
        """These run now, or have published something."""
        super().update_replicas(replicas)
        routing.OF_PROCESS.update(
            {_name(one.replica_id): one.routing_stats.get("stats", ReplicaStats()) for one in replicas}
        )

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:
        """Candidates one by one, the best first."""
        call = pending_request.args[0] if pending_request is not None and pending_request.args else None
        if not isinstance(call, RowCall):
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        by_id = {_name(one.replica_id): one for one in candidate_replicas}
        ring = [_name(one) for one in self._lookup_ranked_replicas(call.stream)] if call.stream else []
        return [[by_id[name]] for name in routing.OF_PROCESS.rank(call, list(by_id), ring)]

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        """A replica has taken a row."""
        if pending_request.args and isinstance(call := pending_request.args[0], RowCall):
            routing.OF_PROCESS.sent(call, _name(replica_id))


def _name(replica_id: Any) -> str:
    name: str = replica_id.unique_id
    return name
