"""All models of the engine thread: which have room, which is next, and which goes where memory is short.

Used on the engine thread; see `model.py` for what its lock guards.
"""

from __future__ import annotations

from collections.abc import Iterator

from asr_server.core.errors import EngineOutOfMemory
from asr_server.scheduling.job import AnyJob
from asr_server.scheduling.model import Model


class Models:
    """The models by name; at least one."""

    def __init__(self, models: list[Model]) -> None:
        self._models = {model.name: model for model in models}

    def __getitem__(self, name: str) -> Model:
        return self._models[name]

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())

    @property
    def rows(self) -> list[AnyJob]:
        """The jobs in all batches."""
        return [job for model in self for job in model.rows.values()]

    def with_live_slots(self) -> list[str]:
        """Return the names of those that can take a live job now."""
        return [model.name for model in self if model.batch.urgent_slots > 0]

    def with_slots(self, reserve: int) -> list[str]:
        """Return the names of those that can take a recording now, and have `reserve` slots left for live jobs."""
        # An empty batch takes any job, or a batch with as few slots as are reserved would never take a recording.
        return [model.name for model in self if model.batch.free_slots > (reserve if model.rows else 0)]

    def in_turn(self) -> list[Model]:
        """Return those that have rows, the one with the most urgent rows first."""
        at_work = [model for model in self if model.rows]
        return sorted(at_work, key=lambda model: min(job.priority for job in model.rows.values()))

    def until_idle_s(self) -> float | None:
        """Seconds until the first is to be unloaded; None when none is."""
        waits_s = (model.idle.remaining_s for model in self if model.batch.loaded)
        return min((wait_s for wait_s in waits_s if wait_s is not None), default=None)

    def ensure_loaded(self, name: str) -> None:
        """Load a model unless it is loaded. While there is no memory for it, the least recently used of the others that
        have no rows is unloaded. Raises what loading raised."""
        model = self[name]
        while not model.batch.loaded:
            others = [other for other in self if other is not model and other.batch.loaded and not other.rows]
            if not others or model.batch.fits:
                try:
                    model.ensure_loaded()
                    return
                except EngineOutOfMemory:
                    if not others:
                        raise
            min(others, key=lambda other: other.idle.used_s).unload()
