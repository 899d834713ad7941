"""The part of a live session that adds up what became of its audio, by the rules of `recordings/coverage.py`.

Every sample before one position is settled, which means counted once, and all others are pending: the sums are
therefore those of the audio received, whatever happens in the session.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from asr_server.audio.segmentation import frame_power
from asr_server.core.audio import FRAME_SAMPLES, SAMPLE_RATE, samples_to_ms
from asr_server.core.transcript import CoverageKind, UnheardReason
from asr_server.live.machine.events import (
    Action,
    Checkpoint,
    Event,
    Final,
    Flush,
    GetCheckpoint,
    ResetDone,
    Samples,
    UtteranceEnded,
)
from asr_server.live.machine.session import LiveMachine
from asr_server.live.machine.table import State
from asr_server.live.machine.utterance import Frame
from asr_server.live.options import Opening, PartRequest, PartSession, SessionPart
from asr_server.live.outbox import PartMessage
from asr_server.recordings.coverage import SoundLevels

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

_EVERY_S = 0.25  # between two messages
_SECOND = 32 * FRAME_SAMPLES  # a pause is judged in such pieces while it lasts
_SAMPLES_PER_MS = SAMPLE_RATE // 1000
_MOST_FRAMES = 16  # whose levels are noted together: an operation of numpy costs as much as the frames of a second
_KEPT_FRAMES = 128  # that are settled, before they are forgotten
_DISCARDED = "discarded"
_HEARD = (CoverageKind.WORDS, CoverageKind.SILENCE, CoverageKind.SOUND)


async def read_opening(socket: WebSocket, opening: Opening) -> Opening:
    """Add the part to a session whose client asks for it."""
    return opening.with_part(PartRequest(CoverageSums)) if opening.query.stats else opening


@dataclass(frozen=True, slots=True)
class SessionStatsMessage(PartMessage):
    """The samples of each outcome, and those that have none yet."""

    samples: Counter[str]  # by the kind, or the reason of what is unheard
    pending: int

    def wire(self) -> dict[str, Any]:
        """Return the sums in seconds. Those of the first level add up to `received`, to the millisecond."""
        names = (*_HEARD, *UnheardReason, _DISCARDED)
        # The sum so far is rounded, and not each of the parts: their errors would add up.
        edges = map(samples_to_ms, accumulate((self.samples[name] for name in names), initial=0))
        ms = {name: end - start for name, (start, end) in zip(names, pairwise(edges), strict=True)}
        received_ms = samples_to_ms(self.samples.total() + self.pending)
        pending_ms = received_ms - sum(ms.values())
        reasons = {reason.value: ms[reason] / 1000 for reason in UnheardReason if ms[reason]}
        return {
            "type": "session.stats",
            "received": received_ms / 1000,
            **{kind.value: ms[kind] / 1000 for kind in _HEARD},
            "unheard": sum(ms[reason] for reason in UnheardReason) / 1000,
            _DISCARDED: ms[_DISCARDED] / 1000,
            "pending": pending_ms / 1000,
            "reasons": reasons,
        }

    def replaces(self, older: PartMessage) -> bool:
        """True for older sums."""
        return isinstance(older, SessionStatsMessage)


class CoverageSums(SessionPart):
    """The sums of one session. It holds two bytes for each frame that is not settled, and the last frames."""

    def __init__(self, session: PartSession) -> None:
        self._session = session
        self._samples: Counter[str] = Counter()
        self._settled = 0  # the position before which all is counted
        self._quiet_to = 0  # nothing before it can become part of an utterance that has not ended
        self._ended = 0  # the end of the last utterance
        self._resets: deque[tuple[int, int]] = deque()  # [from, to), of those that are not settled
        self._frames: list[tuple[Samples, float]] = []  # whose levels are not noted
        self._noted = 0  # the position up to which they are
        self._levels, self._forgotten = SoundLevels(), 0  # the levels of the frames from that number on
        self._sent: SessionStatsMessage | None = None
        self._sent_s = -math.inf
        self._timer: asyncio.TimerHandle | None = None

    def on_frame(self, frame: Frame) -> None:
        """Take the next audio."""
        self._frames.append((frame.samples, frame.probability))
        if len(self._frames) >= _MOST_FRAMES:
            self._note()

    def on_processed(
        self, actions: Sequence[Action], event: Event | None, machine: LiveMachine, *, counted: bool
    ) -> PartMessage | None:
        """Settle what the actions tell, and return the sums if they may be sent now."""
        for action in actions:
            match action:
                case UtteranceEnded(start_samples=start, end_samples=end) if start < end:
                    self._ended = end
                case Final() as final:
                    self._settle_parts(final)
                case ResetDone():
                    self._resets.append((max(self._quiet_to, self._ended), machine.clock_samples))
        (checkpoint,) = machine.receive(GetCheckpoint())
        assert isinstance(checkpoint, Checkpoint), "it is the one answer"
        self._quiet_to = max(self._quiet_to, checkpoint.end_samples)
        is_over = isinstance(event, Flush) or machine.state is State.CLOSED
        self._settle_pause(self._quiet_to, is_over=is_over)
        self._forget()
        return self._next_message(machine)

    def on_connect(self, machine: LiveMachine, *, is_resumed: bool) -> Iterable[PartMessage]:
        """Return the sums for a client that has missed some."""
        return () if self._sent is None else (self._message(machine),)

    def close(self) -> None:
        """Send no more."""
        if self._timer is not None:
            self._timer.cancel()

    # -- messages ----------------------------------------------------------------------------------------------------

    def _message(self, machine: LiveMachine) -> SessionStatsMessage:
        received = machine.account.received
        return SessionStatsMessage(self._samples.copy(), received - self._settled)

    def _next_message(self, machine: LiveMachine) -> SessionStatsMessage | None:
        if self._timer is not None and machine.state is not State.CLOSED:
            return None
        wait_s = self._sent_s + _EVERY_S - time.monotonic()
        if wait_s > 0 and machine.state is not State.CLOSED:
            # What changes now may be the last change for long: it is sent when it may be.
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._send_late, machine)
            return None
        return self._changed(machine)

    def _send_late(self, machine: LiveMachine) -> None:
        self._timer = None
        if (message := self._changed(machine)) is not None:
            self._session.send(message)

    def _changed(self, machine: LiveMachine) -> SessionStatsMessage | None:
        message = self._message(machine)
        if message == self._sent:
            return None
        self._sent, self._sent_s = message, time.monotonic()
        return message

    # -- outcomes ----------------------------------------------------------------------------------------------------

    def _note(self) -> None:
        """Note the levels of the frames that have come."""
        if not self._frames:
            return
        arrays, probabilities = zip(*self._frames, strict=True)
        self._frames.clear()
        # A flush ends a frame early. From there on frames begin inside those of the levels.
        lead = self._noted % FRAME_SAMPLES
        audio = np.concatenate((np.zeros(lead, np.float32), *arrays))
        power = frame_power(audio)
        likely = np.repeat(np.array(probabilities, np.float32), [len(samples) for samples in arrays])
        places = np.clip(FRAME_SAMPLES * np.arange(len(power)) - lead, 0, len(likely) - 1)
        self._levels.put(self._noted // FRAME_SAMPLES - self._forgotten, likely[places], power)
        self._noted += len(likely)

    def _settle_parts(self, final: Final) -> None:
        for part in final.parts:
            self._settle_pause(part.start_samples, is_over=True)
            if part.cut_short or part.text:
                self._settle(part.end_samples, part.cut_short or CoverageKind.WORDS)
            else:
                self._judge(part.end_samples, given=True)

    def _forget(self) -> None:
        """Forget the levels of what is settled, many at a time, since all others move."""
        settled = self._settled // FRAME_SAMPLES - self._forgotten
        if settled >= _KEPT_FRAMES:
            self._note()
            self._levels.forget(settled)
            self._forgotten += settled

    def _settle_pause(self, end: int, *, is_over: bool) -> None:
        """Settle the audio up to there, which is in no utterance. Of a pause that goes on a second or two are left, so
        that its end is not judged by a few frames."""
        while self._resets and self._resets[0][0] < end:
            first, last = self._resets.popleft()
            self._judge(first)
            self._settle(last, _DISCARDED)
        if not is_over:
            end = self._settled + ((end - self._settled) // _SECOND - 1) * _SECOND
        self._judge(end)

    def _judge(self, end: int, *, given: bool = False) -> None:
        """Settle audio without words by its loudness. `given`: the model was given it."""
        if end <= self._settled:
            return
        self._note()
        origin = self._forgotten * FRAME_SAMPLES
        span_ms = (self._settled - origin) // _SAMPLES_PER_MS, -(-(end - origin) // _SAMPLES_PER_MS)
        for part in self._levels.left_out(*span_ms):
            outcome = CoverageKind.SOUND if given and part.reason else part.reason or part.kind
            self._settle(min(end, origin + part.end_ms * _SAMPLES_PER_MS), outcome)

    def _settle(self, end: int, outcome: str) -> None:
        if end > self._settled:
            self._samples[outcome] += end - self._settled
            self._settled = end
