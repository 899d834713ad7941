"""The capacity of an app of a cluster: that of its engine replicas, as they measure and publish it, within its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asr_server.schedule.capacity import LEAST_STREAMS, FreeCapacity, StreamCapacity
from asr_server_ray.routing import Routing


class FleetCapacity(StreamCapacity):
    """The capacity of the replicas of `routing` together.

    The other arguments are those of `StreamCapacity`, whose figures are those of the app itself: its rows, and whether
    partials are in time there.
    """

    def __init__(self, routing: Routing, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._routing = routing

    def free(self, room: int | None = None) -> FreeCapacity:
        """Return the capacity as the replicas published it, less the sessions that this app has opened since."""
        own, fleet = super().free(room), self._routing.streams
        published = [stats.capacity for stats in self._routing.stats.values()]
        measured = [one for one in published if one.streams_measured]
        bound = own.streams if own.streams_measured else self._most(room)
        # Sessions that nobody has spoken in yet are on no replica, and those that have ended are still on one.
        free = fleet.free - (self._sessions - fleet.placed)
        return FreeCapacity(
            free_streams=max(0, min(free, bound - self._sessions)),
            streams=max(0, min(fleet.fit - fleet.of_others, bound)),
            streams_measured=bool(measured) or not published,
            stream_cost=_mean([one.stream_cost for one in measured]),
            speech_share=own.speech_share,
            **_audio(published),
        )

    @property
    def _least_streams(self) -> int:
        return LEAST_STREAMS * max(1, len(self._routing.stats))


def _audio(published: Sequence[FreeCapacity]) -> dict[str, Any]:
    """Return the figures of recordings. A replica that has had none yet counts as one like the others, without work."""
    measured = [one for one in published if one.audio_measured]
    new = len(published) - len(measured) if measured else 0
    known = measured or published
    new_audio_s_per_s = new * _mean([one.audio_s_per_s for one in known])
    return {
        "audio_s_per_s": sum(one.audio_s_per_s for one in known) + new_audio_s_per_s,
        "free_audio_s_per_s": sum(one.free_audio_s_per_s for one in known) + new_audio_s_per_s,
        "audio_measured": bool(measured),
    }


def _mean(figures: Sequence[float]) -> float:
    return sum(figures) / len(figures) if figures else 0.0
