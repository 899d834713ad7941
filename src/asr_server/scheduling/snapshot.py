"""What others may know of the engine thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from asr_server.scheduling.job import DEFAULT
from asr_server.scheduling.model import ModelState, ModelStatus


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """The state of the engine thread at one moment.

    `models`: by name. `running`: rows in all batches. `depth`: waiting jobs by class, `waiting_s` their seconds of
    audio. `busy`: it is in a turn, and so should move; `heartbeat_age_s`: seconds since it last did. `alive`: it has
    not ended. `failure`: why it ends, "" if the engine has not failed.
    """

    models: Mapping[str, ModelStatus]
    running: int
    depth: dict[str, int]
    waiting_s: float
    heartbeat_age_s: float
    busy: bool
    alive: bool
    failure: str = ""

    @property
    def state(self) -> ModelState:
        """Of the default model."""
        return self.models[DEFAULT].state

    @property
    def load_error(self) -> str:
        """Of the default model."""
        return self.models[DEFAULT].load_error

    @property
    def loading(self) -> bool:
        """Whether a load is under way: no other batch moves meanwhile."""
        return any(model.state is ModelState.LOADING for model in self.models.values())
