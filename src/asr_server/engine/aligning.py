"""An engine together with an aligner: one batch for both kinds of work, on one thread.

Transcription comes first: one step decodes for every row and makes at most one part of an aligner's pass, of a bounded
number of tokens. If both have work, the aligner takes about half of the time. The aligner is located in the
background, loaded for the first alignment and unloaded after its own idle time. Transcription continues if it fails.

Everything runs on the engine thread except `Aligner.locate`, which may download for minutes. That runs on a thread of
its own and touches nothing here: the engine thread polls its future.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial

from asr_server.core.errors import AsrError, EngineFailed, ModelUnavailable
from asr_server.core.idle import IdleTimer
from asr_server.engine.protocol import Aligner, AlignerState, AlignItem, Alignment, Engine, EngineInfo, Utterance
from asr_server.processes.caller_work import in_background
from asr_server.schedule.job import RequestClock
from asr_server.schedule.model import Outcome, RowDone, RowFailed

# After a failed load, alignments fail at once for this long. The first one after that tries to load again.
RETRY_S = 60.0
# How long a step waits for the aligner to be located, if it has nothing else to do.
_PAUSE_S = 0.02


@dataclass(slots=True, eq=False)
class _Pass:
    """A pass of the aligner that is under way, in parts."""

    keys: list[int]
    parts: Iterator[list[Alignment | AsrError] | None]
    dropped: set[int] = field(default_factory=set)  # keys that nobody waits for any more


class AligningEngine:
    """Implements `engine.protocol.Engine`; `admit` also takes an `AlignItem`, whose `RowDone` carries an `Alignment`.

    Without an `aligner` every `AlignItem` is refused. `pass_tokens` bounds one pass of the aligner, and so the wait of
    decoding rows; a longer item has a pass to itself. With `idle_timeout_s` of 0, the aligner stays loaded as long as
    the model. `request_clock` stands still while the aligner is loaded. `clock` returns monotonic seconds.
    `prepare` is called on the engine thread before each load of the model. `beside` is another engine with the same
    aligner, which is loaded once for both.
    """

    def __init__(
        self,
        engine: Engine,
        aligner: Aligner | None,
        *,
        pass_tokens: int,
        idle_timeout_s: float,
        request_clock: RequestClock | None = None,
        clock: Callable[[], float] = time.monotonic,
        prepare: Callable[[], None] = lambda: None,
        beside: AligningEngine | None = None,
    ) -> None:
        self._engine = engine
        self._prepare = prepare
        self.aligner = aligner
        self._pass_tokens = pass_tokens
        # The engines with this aligner, and its one timer: no engine unloads it while another one needs it.
        self.sharing: list[AligningEngine] = beside.sharing if beside is not None else []
        self.sharing.append(self)
        self.idle: IdleTimer = beside.idle if beside is not None else IdleTimer(idle_timeout_s, clock)
        self._request_clock = request_clock or RequestClock()
        self._clock = clock
        # Spans whose words are to be placed in time, with the tokens that each takes in a pass.
        self._pending: dict[int, tuple[AlignItem, int]] = {}
        self._under_way: _Pass | None = None
        self._transcribing: set[int] = set()
        self._located: Future[None] | None = None
        self._state = AlignerState.UNLOADED
        self._error = ""
        self._failed_s = clock()
        # Durations that divide the time: of the last part of an aligner's pass, and of the decoding since then.
        self._last_part_s = self._decoded_s = 0.0

    @property
    def info(self) -> EngineInfo:
        return replace(
            self._engine.info,
            aligner_id=self.aligner.aligner_id if self.aligner is not None else "",
            aligner_state=self._aligner_state,
            aligner_error=self._error,
        )

    @property
    def _aligner_state(self) -> AlignerState:
        """Return the state of the aligner, which another engine that shares it may have loaded or unloaded."""
        if self.aligner is not None and self.aligner.loaded:
            return AlignerState.LOADED
        return AlignerState.UNLOADED if self._state is AlignerState.LOADED else self._state

    @property
    def loaded(self) -> bool:
        return self._engine.loaded

    @property
    def fits(self) -> bool:
        return self._engine.fits

    @property
    def free_slots(self) -> int:
        """Return the slots free for either kind. A waiting alignment takes one; a whole pass of them takes all.

        While the aligner is being located, which may take minutes, they take none: transcription would be kept out.
        """
        if self._state is AlignerState.LOADING:
            return self._engine.free_slots
        if sum(tokens for _, tokens in self._pending.values()) >= self._pass_tokens:
            return 0
        return max(0, self._engine.free_slots - len(self._pending))

    @property
    def urgent_slots(self) -> int:
        return self._engine.urgent_slots

    def load(self) -> None:
        """Load the model. Raises `ModelUnavailable`."""
        self._prepare()
        self._engine.load()

    def unload(self) -> None:
        """Unload the model, and the aligner with the last of the models that share it."""
        self._under_way = None
        self._engine.unload()
        if not any(each.loaded for each in self.sharing):
            self._unload_aligner()

    def admit(self, key: int, item: Utterance | AlignItem, urgent: bool = False) -> None:
        """Take a row in; `urgent` is for utterances. For an alignment, raises at once if the aligner failed to load
        less than `RETRY_S` ago."""
        if isinstance(item, Utterance):
            self._engine.admit(key, item, urgent)
            self._transcribing.add(key)
            return
        if self.aligner is None:
            raise ModelUnavailable("This model has no aligner, and FORCED_ALIGNER_ID is not set.")
        if self._error and self._clock() - self._failed_s < RETRY_S:
            raise ModelUnavailable(self._error)
        self._pending[key] = item, self.aligner.cost(item)

    def step(self, begin_s: float | None = None) -> Iterator[Outcome]:
        """Decode for every row, then run at most one part of a pass of the aligner. If `begin_s` limits the step, a new
        pass has one item."""
        if self._transcribing:
            began_s = self._clock()
            for outcome in self._engine.step(begin_s):
                if isinstance(outcome, RowDone | RowFailed):
                    self._transcribing.discard(outcome.key)
                yield outcome
            self._decoded_s += self._clock() - began_s
        is_due = not self._transcribing or self._decoded_s >= self._last_part_s
        if self.aligner is not None and (self._pending or self._under_way) and is_due:
            yield from self._align(self.aligner, self._pass_tokens if begin_s is None else 0)

    def drop(self, key: int) -> None:
        if self._under_way is not None and key in self._under_way.keys:
            self._under_way.dropped.add(key)
            if self._under_way.dropped.issuperset(self._under_way.keys):
                self._under_way = None  # no further step would come to end it, and the aligner would stay loaded
        elif self._pending.pop(key, None) is None:
            self._transcribing.discard(key)
            self._engine.drop(key)
        elif not self._pending and self._state is AlignerState.LOADING:
            # Nobody waits for the aligner any more. It is still being located, but will not be loaded.
            self._state = AlignerState.UNLOADED

    def poll_idle(self) -> float | None:
        """Unload the aligner if it was idle for long enough. Return the seconds until the next call is due, or None."""
        if self.aligner is None or not self.aligner.loaded or self._pending or self._under_way:
            return None
        if self.idle.expired:
            self._unload_aligner()
            return None
        return self.idle.remaining_s

    def _align(self, aligner: Aligner, pass_tokens: int) -> Iterator[Outcome]:
        try:
            if not aligner.loaded:
                self._make_ready(aligner)
                return
        except EngineFailed:
            raise
        except Exception as error:  # only the jobs that wait for the aligner get it
            yield from self._give_up(error)
            return
        began_s = self._clock()
        if self._under_way is None:
            keys = self._next_pass(pass_tokens)
            self._under_way = _Pass(keys, aligner.align([self._pending.pop(key)[0] for key in keys]))
        # Taken out while it runs, so that a pass that raises is over.
        own, self._under_way = self._under_way, None
        results = next(own.parts)
        self.idle.touch()
        self._last_part_s, self._decoded_s = self._clock() - began_s, 0.0
        if results is None:
            self._under_way = own
            return
        for key, result in zip(own.keys, results, strict=True):
            if key not in own.dropped:
                yield RowDone(key, result) if isinstance(result, Alignment) else RowFailed(key, result)

    def _next_pass(self, pass_tokens: int) -> list[int]:
        """Return the keys of the next pass: the oldest first, as many as `pass_tokens` allow, at least one."""
        keys, used = list[int](), 0
        for key, (_, tokens) in self._pending.items():
            used += tokens
            if keys and used > pass_tokens:
                break
            keys.append(key)
        return keys

    def _make_ready(self, aligner: Aligner) -> None:
        """Locate the aligner in the background, then load it here.

        The step that loads makes no pass. Both may take long, and the thread reports progress between two steps.
        """
        self._state = AlignerState.LOADING
        if self._located is None:
            self._located = in_background(partial(self._locate, aligner), "aligner-locate")
        if not self._located.done():
            if not self._transcribing:
                time.sleep(_PAUSE_S)
            return
        self._located.result()
        with self._request_clock.loading():
            aligner.load()
        self._located, self._error, self._state = None, "", AlignerState.LOADED
        self.idle.touch()

    def _locate(self, aligner: Aligner) -> None:
        with self._request_clock.loading():
            aligner.locate()

    def _give_up(self, error: Exception) -> Iterator[Outcome]:
        """Fail all waiting alignments with the reason why the aligner cannot be located or loaded."""
        if not isinstance(error, AsrError):
            cause, error = error, ModelUnavailable(f"The aligner cannot be loaded ({type(error).__name__}).")
            error.__cause__ = cause
        self._located, self._error, self._failed_s = None, error.message, self._clock()
        self._state = AlignerState.FAILED
        waiting, self._pending = list(self._pending), {}
        for key in waiting:
            yield RowFailed(key, error)

    def _unload_aligner(self) -> None:
        if self.aligner is not None and self.aligner.loaded:
            self.aligner.unload()
            self._state = AlignerState.UNLOADED
