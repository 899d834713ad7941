"""What others may know of the engine thread."""

from __future__ import annotations

from dataclasses import dataclass

from asr_server.scheduling.model import ModelState


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """The state of the engine thread at one moment.

    `running`: rows in the batch. `depth`: waiting jobs by class, `waiting_s` their seconds of audio. `busy`: it is in a
    turn, and so should move; `heartbeat_age_s`: seconds since it last did. `alive`: it has not ended. `failure`: why it
    ends, "" if the engine has not failed.
    """

    state: ModelState
    load_error: str
    running: int
    depth: dict[str, int]
    waiting_s: float
    heartbeat_age_s: float
    busy: bool
    alive: bool
    failure: str = ""
