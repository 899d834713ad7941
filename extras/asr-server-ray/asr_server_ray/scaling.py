"""Chooses the number of engine replicas: enough for the audio that waits, and for live sessions that may come. Pure.

Ray Serve calls `policy` with the figures that the replicas publish. The load of a GPU says nothing: one session can
keep it busy, and it may take a hundred more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# The time within which the waiting work should be done.
CLEAR_S = 30.0
# The part of the streams that fit which is kept free: as many may come while another replica starts.
SPARE = 0.25
# Ray Serve averages the published figures over some seconds.
_MEASURED = 0.5


@dataclass(frozen=True, slots=True)
class Load:
    """The load that one replica publishes."""

    waiting_s: float = 0.0  # seconds of audio that wait, for all replicas
    audio_s_per_s: float = 0.0  # seconds of recordings in a second
    streams: float = 0.0  # live sessions that fit
    streams_measured: float = 1.0  # 0 if `streams` is a guess
    sessions: float = 0.0  # live sessions that are there


def replicas(loads: Mapping[str, Load], running: int) -> int:
    """Return how many replicas these loads need. The bounds and the delays are those of the caller."""
    if not loads:
        return running
    count = len(loads)
    waiting_s = max(load.waiting_s for load in loads.values())
    speed = sum(load.audio_s_per_s for load in loads.values()) / count
    unmeasured = running + 1 if waiting_s else 1
    for_audio = math.ceil(waiting_s / (speed * CLEAR_S)) if speed > 0 else unmeasured
    # As in the admission of the apps, a replica that has measured nothing yet counts as the mean of the others.
    known = [load.streams for load in loads.values() if load.streams_measured >= _MEASURED]
    known = known or [load.streams for load in loads.values()]
    fit = sum(known) / len(known)
    taken = sum(load.sessions for load in loads.values())
    for_streams = math.ceil(taken / (fit * (1 - SPARE))) if fit > 0 else running
    return max(1, for_audio, for_streams)


def policy(context: Any) -> tuple[int, dict[str, Any]]:
    """Return `replicas` for Ray Serve. `context`: of a deployment whose replicas have `record_autoscaling_stats`."""
    metrics: Mapping[str, Mapping[Any, float]] = context.aggregated_metrics or {}
    loads: dict[str, Load] = {}
    for name in {replica for values in metrics.values() for replica in values}:
        found = {key: values[name] for key, values in metrics.items() if name in values}
        loads[str(name)] = Load(**{key: value for key, value in found.items() if key in Load.__dataclass_fields__})
    return replicas(loads, context.current_num_replicas), {}
