"""Decides when the worker process is started and restarted. A pure state machine: no process, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class WorkerState(Enum):
    """The state of the worker process; the values are those of `/health`."""

    STOPPED = "stopped"
    STARTING = "starting"  # also during the wait before a restart
    RUNNING = "running"
    STOPPING = "stopping"
    FAILED = "failed"  # it crashes again and again; the next start is tried only after a while


class Decision(Enum):
    """The next step of a caller who needs the worker."""

    START = "start"
    WAIT = "wait"
    GO = "go"
    GIVE_UP = "give up"


@dataclass(frozen=True, slots=True)
class RestartConfig:
    """Limits of the restarts of a worker that dies.

    A start is unproductive when the worker answered no request and ended soon after it was ready. The first restart is
    immediate.
    """

    productive_s: float = 30.0  # a worker that ran for this long after it was ready was productive
    first_wait_s: float = 0.25  # before the second restart; it doubles with each further one
    most_unproductive: int = 5  # starts in a row, after which there is none for `give_up_s`
    give_up_s: float = 10.0


class RestartPolicy:
    """One process after another. Times are seconds on any monotonic clock."""

    def __init__(self, config: RestartConfig | None = None) -> None:
        self._config = config or RestartConfig()
        self.state = WorkerState.STOPPED
        self._unproductive = 0
        self._productive = False
        self._ready_s: float | None = None
        self._retry_at_s = 0.0

    @property
    def given_up(self) -> bool:
        """True if there is no start for now."""
        return self.state is WorkerState.FAILED

    def decide(self, now_s: float) -> Decision:
        """Return the next step of a caller who needs the worker. After `START` the state is `STARTING`."""
        match self.state:
            case WorkerState.RUNNING:
                return Decision.GO
            case WorkerState.STARTING | WorkerState.STOPPING:
                return Decision.WAIT
            case WorkerState.FAILED if now_s < self._retry_at_s:
                return Decision.GIVE_UP
        self.state = WorkerState.STARTING
        return Decision.START

    def on_ready(self, now_s: float) -> None:
        """Note that the process accepts connections."""
        if self.state is WorkerState.STARTING:
            self.state, self._ready_s, self._productive = WorkerState.RUNNING, now_s, False

    def served(self) -> None:
        """Note that the process answered a request."""
        self._productive, self._unproductive = True, 0

    def stop(self) -> None:
        """Note that the process is stopped on purpose."""
        if self.state in (WorkerState.STARTING, WorkerState.RUNNING):
            self.state = WorkerState.STOPPING

    def on_exit(self, now_s: float) -> float | None:
        """Note that the process is gone, or could not be started.

        Returns the seconds until the next start, or None if there is none.
        """
        ready_s, self._ready_s = self._ready_s, None
        if self.state is WorkerState.STOPPING:
            self.state = WorkerState.STOPPED
            return None
        if self._productive or (ready_s is not None and now_s - ready_s >= self._config.productive_s):
            self._unproductive = 0
        self._productive = False
        self._unproductive += 1
        if self._unproductive >= self._config.most_unproductive:
            # After the pause, one more failure gives up again.
            self._unproductive = self._config.most_unproductive - 1
            self.state, self._retry_at_s = WorkerState.FAILED, now_s + self._config.give_up_s
            return None
        self.state = WorkerState.STARTING
        return 0.0 if self._unproductive == 1 else self._config.first_wait_s * float(2 ** (self._unproductive - 2))
