"""The apps of the cluster as one of them knows them: which run, and whether this one is being stopped. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

# Ray Serve leaves a replica out for a moment while it changes the configuration of its deployment.
_ABSENT_S = 2.0


class RunningApps:
    """`own`: the name of this app, once it is known. `clock`: monotonic seconds. May be used from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.own = ""
        self._clock = clock
        self._names: frozenset[str] = frozenset()
        self._absent_since_s: float | None = None

    def update(self, names: Iterable[str]) -> None:
        """These apps get new requests, and others do not."""
        before, self._names = self._names, frozenset(names)
        if self.own in self._names:
            self._absent_since_s = None
        elif self.own in before:
            self._absent_since_s = self._clock()

    def is_other(self, name: str) -> bool:
        """Whether that is another app that runs. All do that are named before the first update."""
        return name != self.own and (not self._names or name in self._names)

    @property
    def own_is_stopped(self) -> bool:
        """Whether this app ran, and gets no new requests any more."""
        since_s = self._absent_since_s
        return since_s is not None and self._clock() - since_s >= _ABSENT_S


# That of the one app of a process: its router is made by Ray Serve.
OF_PROCESS = RunningApps()
