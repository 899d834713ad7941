"""The rules of a live stream on this server, and a first guess of the speed of its engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asr_server.core.audio import SAMPLE_RATE
from asr_server.schedule.capacity import FIRST_GUESS_SPEED, FIRST_GUESS_SPEED_GPU, StreamRules

if TYPE_CHECKING:
    from asr_server.core.settings import Settings
    from asr_server.engine.plan import Plan


def stream_rules(settings: Settings, plan: Plan) -> StreamRules:
    """Return the rules for these settings, as the plan resolved them."""
    return StreamRules(
        partial_every_s=settings.ws_buffer_size / (2 * SAMPLE_RATE),
        max_sessions=settings.max_live_sessions,
        first_guess_speed=FIRST_GUESS_SPEED_GPU if plan.device.startswith("cuda") else FIRST_GUESS_SPEED,
        refuses=settings.live_admission,
        steps_are_work=plan.remote is None,
    )
