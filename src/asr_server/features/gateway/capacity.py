"""The capacity that a gateway reports, also while its worker is stopped or has not measured anything yet. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from asr_server.schedule.capacity import EngineWork, StreamCapacity, StreamRules

# Figures that are measured together, by the field that says whether they are.
_MEASURED = {
    "streams_measured": ("streams", "stream_cost", "speech_share"),
    "audio_measured": ("audio_s_per_s",),
}


class KnownCapacity:
    """Keeps the last figures that a worker measured; before the first, a guess.

    The dicts have the fields of `CapacityBody`.
    """

    def __init__(self, rules: StreamRules) -> None:
        self._max_sessions = rules.max_sessions
        self._known: dict[str, Any] = asdict(StreamCapacity(EngineWork(), rules).free())

    def of_worker(self, health: Mapping[str, Any]) -> dict[str, Any]:
        """Return the capacity with a running worker. `health`: the worker's answer to `/health`."""
        told, sessions = health["capacity"], health["live"]["sessions"]
        for measured, names in _MEASURED.items():
            if told[measured]:
                self._known.update({name: told[name] for name in (measured, *names)})
        # A worker has no limit of sessions: that is the gateway's. Some sessions may take no stream.
        streams, places = min(self._known["streams"], self._max_sessions), self._max_sessions - sessions
        free = min(told["free_streams"], places) if told["streams_measured"] else streams - sessions
        free_audio_s_per_s = told["free_audio_s_per_s"] if told["audio_measured"] else self._known["audio_s_per_s"]
        return self._known | {
            "streams": streams,
            "free_streams": max(0, free),
            "free_audio_s_per_s": free_audio_s_per_s,
        }

    def without_worker(self) -> dict[str, Any]:
        """Return the capacity while there is no worker: all that a worker can take is free."""
        streams = min(self._known["streams"], self._max_sessions)
        return self._known | {
            "streams": streams,
            "free_streams": streams,
            "free_audio_s_per_s": self._known["audio_s_per_s"],
        }
