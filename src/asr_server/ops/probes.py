"""Decides if the server is live and if it is ready, for the probes, `/health` and the metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asr_server.engine.protocol import AlignerState
from asr_server.schedule.model import EngineSnapshot, ModelState

if TYPE_CHECKING:
    from asr_server.services import Services


def not_live(services: Services, snapshot: EngineSnapshot | None = None) -> str:
    """Return why the process should be restarted; "" if it should not. Loading a model may take minutes: no hang."""
    engine = snapshot or services.thread.snapshot()
    aligners = (each.info.aligner_state for each in services.engines.values())
    loading = engine.loading or AlignerState.LOADING in aligners
    stuck = engine.busy and engine.heartbeat_age_s > services.settings.engine_hang_s and not loading
    reason = engine.failure or ("the engine thread does not move" if stuck or not engine.alive else "")
    return reason or next((found for failure in services.failures if (found := failure())), "")


def not_ready(services: Services) -> str:
    """Return why new work should go elsewhere; "" if it is accepted."""
    if services.draining:
        return "draining"
    if not services.ready:
        return "the model is being loaded"
    # A server that is full for recordings alone stays ready, or a load balancer would send live sessions nowhere.
    if services.admission.full and not services.admission.capacity().free_streams:
        return "saturated"
    snapshot = services.thread.snapshot()
    if snapshot.state is ModelState.FAILED:
        return "the model could not be loaded"
    return not_live(services, snapshot)
