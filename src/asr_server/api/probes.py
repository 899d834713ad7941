"""Whether the server is live and whether it is ready, for the probes, `/health` and the metrics alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asr_server.engine.protocol import AlignerState
from asr_server.scheduling.thread import ModelState, Snapshot

if TYPE_CHECKING:
    from asr_server.api.deps import Services


def not_live(here: Services, snapshot: Snapshot | None = None) -> str:
    """Why the process should be restarted; "" if it should not. A load may take minutes, and is no hang."""
    seen = snapshot or here.thread.snapshot()
    loading = seen.state is ModelState.LOADING or here.engine.info.aligner_state is AlignerState.LOADING
    stuck = seen.busy and seen.beat_age_s > here.settings.engine_hang_s and not loading
    return "the engine thread does not move" if stuck or not seen.alive else ""


def not_ready(here: Services) -> str:
    """Why new work should go elsewhere; "" if it may come."""
    if here.draining:
        return "draining"
    if not here.ready:
        return "the model is being loaded"
    if here.admission.full:
        return "saturated"
    snapshot = here.thread.snapshot()
    if snapshot.state is ModelState.FAILED:
        return "the model could not be loaded"
    return not_live(here, snapshot)
