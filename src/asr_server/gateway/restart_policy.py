"""The life of the worker process as a pure state machine: what to do next, and how long to wait. Starts nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class WorkerState(Enum):
    """Where the worker is; the values are those of `/health`."""

    STOPPED = "stopped"
    STARTING = "starting"  # also while a restart is held back
    RUNNING = "running"
    STOPPING = "stopping"
    FAILED = "failed"  # it does not stay up; tried again after a while


class Decision(Enum):
    """What somebody who needs the worker has to do."""

    START = "start"
    WAIT = "wait"
    GO = "go"
    GIVE_UP = "give up"


@dataclass(frozen=True, slots=True)
class RestartConfig:
    """When a worker that dies is started again.

    A start is unproductive when the worker answered nobody and ended within `fruitful_s` of being ready. The first
    restart is at once, then the wait doubles from `first_wait_s`; after `most_unproductive` in a row none is tried
    for `rest_s`.
    """

    fruitful_s: float = 30.0
    first_wait_s: float = 0.25
    most_unproductive: int = 5
    rest_s: float = 10.0


class RestartPolicy:
    """One worker after another. Times are seconds of any steady clock."""

    def __init__(self, rules: RestartConfig | None = None) -> None:
        self._rules = rules or RestartConfig()
        self.state = WorkerState.STOPPED
        self._fruitless = 0
        self._fruitful = False
        self._ready_s: float | None = None
        self._rested_s = 0.0

    @property
    def given_up(self) -> bool:
        """Whether the worker does not stay up."""
        return self.state is WorkerState.FAILED

    def want(self, now_s: float) -> Decision:
        """Somebody needs the worker. After `START` it counts as starting."""
        match self.state:
            case WorkerState.RUNNING:
                return Decision.GO
            case WorkerState.STARTING | WorkerState.STOPPING:
                return Decision.WAIT
            case WorkerState.FAILED if now_s < self._rested_s:
                return Decision.GIVE_UP
        self.state = WorkerState.STARTING
        return Decision.START

    def ready(self, now_s: float) -> None:
        """The process takes requests."""
        if self.state is WorkerState.STARTING:
            self.state, self._ready_s, self._fruitful = WorkerState.RUNNING, now_s, False

    def served(self) -> None:
        """The process answered somebody."""
        self._fruitful, self._fruitless = True, 0

    def stop(self) -> None:
        """The process is being ended on purpose."""
        if self.state in (WorkerState.STARTING, WorkerState.RUNNING):
            self.state = WorkerState.STOPPING

    def exited(self, now_s: float) -> float | None:
        """The process is gone, or could not be started. Returns the seconds until the next start; None is no start."""
        ready_s, self._ready_s = self._ready_s, None
        if self.state is WorkerState.STOPPING:
            self.state = WorkerState.STOPPED
            return None
        if self._fruitful or (ready_s is not None and now_s - ready_s >= self._rules.fruitful_s):
            self._fruitless = 0
        self._fruitful = False
        self._fruitless += 1
        if self._fruitless >= self._rules.most_unproductive:
            # The next attempt after the rest is a single one.
            self._fruitless = self._rules.most_unproductive - 1
            self.state, self._rested_s = WorkerState.FAILED, now_s + self._rules.rest_s
            return None
        self.state = WorkerState.STARTING
        return 0.0 if self._fruitless == 1 else self._rules.first_wait_s * float(2 ** (self._fruitless - 2))
