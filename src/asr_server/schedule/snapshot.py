"""The engine thread's state for others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from asr_server.schedule.job import DEFAULT
from asr_server.schedule.model import ModelState, ModelStatus


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """The state of the engine thread at one moment."""

    models: Mapping[str, ModelStatus]  # by name
    running: int  # rows in all batches
    depth: dict[str, int]  # waiting jobs by class
    waiting_s: float  # their seconds of audio
    heartbeat_age_s: float  # seconds since the thread last made progress
    busy: bool  # the thread is in a turn, and so should make progress
    alive: bool  # it has not ended
    failure: str = ""  # why it ends, "" if the engine has not failed

    @property
    def state(self) -> ModelState:
        """Return the state of the default model."""
        return self.models[DEFAULT].state

    @property
    def load_error(self) -> str:
        """Return the load error of the default model."""
        return self.models[DEFAULT].load_error

    @property
    def loading(self) -> bool:
        """True if a load is under way: no other batch moves meanwhile."""
        return any(model.state is ModelState.LOADING for model in self.models.values())
