"""A server in simulated time: the real engine thread, queue and admission over a simulated batch.

Nothing of the schedule is modelled: `EngineThread.turn` decides as it does in the server, by a clock that each step
advances. Everything outside of the engine thread is an event at the simulated moment.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count

from asr_server.core.errors import Overloaded
from asr_server.schedule.admission import Admission, AdmissionTicket
from asr_server.schedule.job import Job, Priority
from asr_server.schedule.thread import EngineThread
from asr_server_sizing.batch import SimulatedBatch, Work
from asr_server_sizing.profile import Profile

# The least part of shared cores that the engine has: the kernel divides their time.
_LEAST_SHARE = 0.1


class Events:
    """Actions at moments of simulated time, in order; those of one moment in the order they came."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, at_s: float, action: Callable[[], None]) -> None:
        """Call `action` at that moment, which has not passed."""
        heapq.heappush(self._heap, (at_s, next(self._numbers), action))

    def run(self, until_s: float) -> None:
        """Let time pass."""
        while self._heap and self._heap[0][0] <= until_s:
            self.now_s, _, action = heapq.heappop(self._heap)
            action()
        self.now_s = until_s


@dataclass(frozen=True, slots=True)
class HostCosts:
    """The costs of a replica besides the engine's steps, in seconds of one core for each second of audio."""

    silent_s: float = 0.0  # of a live session in silence
    voiced_s: float = 0.0  # of speech in a live session
    recording_s: float = 0.0  # of recordings
    silent_loop_s: float = 0.0  # the part of `silent_s` on the thread of the event loop
    voiced_loop_s: float = 0.0  # the part of `voiced_s` there
    recording_loop_s: float = 0.0  # the part of `recording_s` there
    detection_s: float = 0.0  # of a live session, on the thread of voice detection
    shared_cores: int = 0  # the engine's steps run on these cores too; 0 if they run on an accelerator


@dataclass(frozen=True, slots=True)
class Limits:
    """The settings that bound what a replica accepts."""

    live_sessions: int = 256
    queue_audio_s: float = 14_400.0
    request_timeout_s: float = 300.0


class Replica:
    """One server. `busy_s`: the seconds that its engine was in steps so far."""

    def __init__(self, events: Events, profile: Profile, host: HostCosts, limits: Limits) -> None:
        self._events, self._host, self._limits = events, host, limits
        self._engine_s = 0.0  # the engine thread's clock, ahead of the events' in the middle of a turn
        self._jobs = 0  # queued or running
        self._turning = False
        self.busy_s = 0.0
        self.sessions = self.speaking = 0
        self.recordings_s_per_s = 0.0  # of audio, which the processor decodes
        self.thread = EngineThread(
            SimulatedBatch(profile, self._spend),
            idle_timeout_s=0.0,
            live_reserve=profile.slots // 8,
            clock=lambda: self._engine_s,
            start=False,
        )
        self.admission = Admission(
            limits.queue_audio_s,
            time_limit_s=limits.request_timeout_s,
            engine_s=lambda: self.thread.work.with_recordings_s,
        )

    @property
    def host_load(self) -> float:
        """The cores that are used besides the engine's steps."""
        host = self._host
        silent = (self.sessions - self.speaking) * host.silent_s
        return silent + self.speaking * host.voiced_s + self.recordings_s_per_s * host.recording_s

    @property
    def now_s(self) -> float:
        """The simulated time."""
        return self._events.now_s

    def after_decoding(self, began_s: float, seconds: float, action: Callable[[], None]) -> None:
        """Call `action` when `seconds` of a recording, which came at `began_s`, are decoded."""
        ready_s = began_s + seconds * self._host.recording_s
        if ready_s <= self._events.now_s:
            action()
        else:
            self._events.at(ready_s, action)

    def open_session(self) -> ExitStack:
        """Return a place for a live session, held until it is closed. Raises `Overloaded`."""
        if self.sessions >= self._limits.live_sessions:
            raise Overloaded("The server has all the live sessions that it may have.", retry_after_s=1)
        with ExitStack() as begun:
            begun.enter_context(self.admission.hold_live())
            begun.enter_context(self.thread.lease(live=True))
            self.sessions += 1
            begun.callback(self._close_session)
            return begun.pop_all()

    def _close_session(self) -> None:
        self.sessions -= 1

    def hold(self, length_s: float) -> tuple[AdmissionTicket, ExitStack]:
        """Admit a recording of that length. Raises `Overloaded`."""
        with ExitStack() as begun:
            ticket = begun.enter_context(self.admission.hold())
            self.admission.measure(ticket, length_s)
            return ticket, begun.pop_all()

    def submit(self, work: Work, priority: Priority, seconds: float, on_done: Callable[[], None]) -> Callable[[], None]:
        """Queue a row; `on_done` is called at the moment when it is done. Returns a function that cancels it."""
        job = Job[None](work, priority, cost_s=seconds)
        cancelled = False
        # At the moment of the outcome, which may be before the end of the turn that is being computed.
        job.future.add_done_callback(lambda _: self._events.at(max(self._events.now_s, self._engine_s), ended))

        def ended() -> None:
            self._jobs -= 1
            if not cancelled:
                on_done()

        def cancel() -> None:
            nonlocal cancelled
            cancelled = True
            job.future.cancel()

        self._jobs += 1
        if not self._turning:
            self._engine_s = self._events.now_s
            self._turning = True
            self._events.at(self._events.now_s, self._turn)
        job.queued_s = self._events.now_s
        self.thread.submit(job)
        return cancel

    def _turn(self) -> None:
        """Make one turn of the engine thread. Work that comes meanwhile waits for the next one."""
        self._engine_s = self._events.now_s
        self.thread.turn()
        self._events.at(self._engine_s, self._after_turn)

    def _after_turn(self) -> None:
        self._turning = self._jobs > 0
        if self._turning:
            self._turn()

    def _spend(self, seconds: float) -> None:
        if cores := self._host.shared_cores:
            seconds /= max(_LEAST_SHARE, 1 - self.host_load / cores)
        self._engine_s += seconds
        self.busy_s += seconds
