"""A recording in simulated time: spans at the engine, a bounded number ahead, as `recordings/pipeline.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from asr_server.core.errors import Overloaded
from asr_server.schedule.job import Priority
from asr_server_sizing.batch import Work
from asr_server_sizing.profile import AUDIO_TOKENS_PER_S, PROMPT_TOKENS, Profile
from asr_server_sizing.replica import Replica

# As the pipeline has them: spans that are queued ahead, and the length above which a recording is bulk work.
_LOOK_AHEAD = 16
_BULK_OVER_S = 60.0


class Recording:
    """One recording. `spans_s`: lengths of its spans. `on_done` is called at its end."""

    def __init__(
        self, profile: Profile, replica: Replica, spans_s: Sequence[float], on_done: Callable[[], None]
    ) -> None:
        self._profile, self._replica, self._spans_s, self._on_done = profile, replica, spans_s, on_done
        self._priority = Priority.BULK if sum(spans_s) > _BULK_OVER_S else Priority.INTERACTIVE
        self._finished = [False] * len(spans_s)
        self._sent = self._taken = 0
        self._began_s, self._decoded_s = replica.now_s, 0.0

    def start(self) -> bool:
        """Begin, unless the replica refuses it. Returns True if it was accepted."""
        try:
            self._ticket, self._place = self._replica.hold(sum(self._spans_s))
        except Overloaded:
            return False
        self._send()
        return True

    def _send(self) -> None:
        while self._sent < min(len(self._spans_s), self._taken + _LOOK_AHEAD):
            number, span_s = self._sent, self._spans_s[self._sent]
            self._sent += 1
            self._decoded_s += span_s
            self._replica.after_decoding(self._began_s, self._decoded_s, partial(self._submit, number, span_s))

    def _submit(self, number: int, span_s: float) -> None:
        work = Work(round(span_s * AUDIO_TOKENS_PER_S) + PROMPT_TOKENS, self._profile.answer_passes(span_s))
        self._replica.submit(work, self._priority, span_s, partial(self._on_span, number))

    def _on_span(self, number: int) -> None:
        """Note that a span is done. Spans are taken in order, whichever is done first."""
        self._finished[number] = True
        admission = self._replica.admission
        while self._taken < len(self._spans_s) and self._finished[self._taken]:
            self._taken += 1
            admission.progress(self._ticket, sum(self._spans_s[: self._taken]))
        if self._taken < len(self._spans_s):
            self._send()
            return
        admission.finish(self._ticket, sum(self._spans_s))
        self._place.close()
        self._on_done()
