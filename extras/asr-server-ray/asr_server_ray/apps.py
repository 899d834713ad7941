"""The apps of the cluster as one of them knows them: which run, and whether this one is being stopped. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

# Ray Serve leaves a replica out for a moment while it changes the configuration of its deployment.
_ABSENT_S = 2.0


class RunningApps:
    """The apps that run. May be used from any thread.

    `own`: the name of this app, once it is known. `clock`: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.own = ""
        self._clock = clock
        self._names: frozenset[str] = frozenset()
        self._absent_since_s: float | None = None

    def update(self, names: Iterable[str]) -> None:
        """Note the apps that get new requests; others do not."""
        before, self._names = self._names, frozenset(names)
        if self.own in self._names:
            self._absent_since_s = None
        elif self.own in before:
            self._absent_since_s = self._clock()

    def is_other(self, name: str) -> bool:
        """Return True if another app of this name runs. Before the first update every other app counts as running."""
        return name != self.own and (not self._names or name in self._names)

    @property
    def own_is_stopped(self) -> bool:
        """True if this app ran, and gets no new requests any more."""
        since_s = self._absent_since_s
        return since_s is not None and self._clock() - since_s >= _ABSENT_S


# The apps as seen by the one app of this process, whose router is made by Ray Serve.
OF_PROCESS = RunningApps()
