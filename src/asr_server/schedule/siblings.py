"""Limits that several processes of one server share: each counts what the others have under way too."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, Protocol


class HeldAudio(Protocol):
    """Accepted audio, of one ticket or of several that are alike. The fields are those of `AdmissionTicket`."""

    @property
    def left_s(self) -> float: ...
    @property
    def share(self) -> str: ...
    @property
    def bulk(self) -> bool: ...
    @property
    def live(self) -> bool: ...
    @property
    def known(self) -> bool: ...
    @property
    def left(self) -> bool: ...
    @property
    def heard_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class SiblingsUse:
    """The requests and sessions at the other processes."""

    requests: int = 0  # of one caller, its sessions included
    live: int = 0  # of that caller's, sessions
    live_of_all: int = 0  # sessions of all callers
    # When the caller's token bucket will be full again, on the monotonic clock, which all processes of a machine share.
    full_at_s: float = -math.inf


@dataclass(frozen=True, slots=True)
class SiblingsWork:
    """The accepted audio at the other processes."""

    held: Sequence[HeldAudio] = ()
    streams: int = 0  # live sessions that take a stream
    sessions: int = 0  # those that take a place
    done_s: float = 0.0  # seconds of audio of recordings that were answered so far


class Siblings:
    """A process without others. `Quota` and `Admission` call it; a subclass answers for the other processes, and tells
    them what this one has. Used from the event loop, on which no method may wait for longer than a millisecond or so.
    """

    # False where another process logs the plan and the access rules for all.
    logs_plan: ClassVar[bool] = True

    def exclusive(self) -> AbstractContextManager[None]:
        """Have the others wait with their decisions until the block ends, so that two never take the same place."""
        return nullcontext()

    def use(self, caller: str) -> SiblingsUse:
        """Return the use of a caller at the others."""
        return _NO_USE

    def note_use(self, caller: str, use: SiblingsUse) -> None:
        """Tell the others what this process has of a caller's; `live_of_all` does not count."""

    def note_session(self, session: str, *, kept: bool) -> None:
        """Tell the others that this process keeps what has this id, such as a session; or no longer."""

    def work(self) -> SiblingsWork:
        """Return the work of the others."""
        return _NO_WORK

    def note_work(self, held: Collection[HeldAudio], done_s: float) -> None:
        """Tell the others of the work of this process, `done_s` as in `SiblingsWork`."""


_NO_USE, _NO_WORK = SiblingsUse(), SiblingsWork()
