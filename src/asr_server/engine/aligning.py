"""An engine with an aligner beside it: one batch for both kinds of work, on one thread. Knows no model.

Transcription comes first: one step decodes for every row and makes at most one aligner pass, of a bounded number of
tokens, and where both have work the aligner takes about half of the time. The aligner is found in the background,
loaded at the first alignment and unloaded on its own clock; whatever goes wrong with it, transcription goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace

from asr_server.core.errors import AsrError, ModelUnavailable
from asr_server.engine.protocol import Aligner, AlignerState, AlignItem, Alignment, Engine, EngineInfo, Utterance
from asr_server.scheduling.ports import Outcome, RowDone, RowFailed

# An aligner that could not be loaded is tried again at the first alignment after this time, not at every one.
RETRY_S = 60.0
# How long a step waits for the background when it has nothing else to do.
_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    item: AlignItem
    tokens: int


class AligningEngine:
    """Implements `engine.protocol.Engine`; `admit` also takes an `AlignItem`, whose `RowDone` carries an `Alignment`.

    `pass_tokens` bounds one pass of the aligner, and with it the wait of rows that decode; a longer item goes alone.
    `idle_timeout_s` of 0 keeps the aligner as long as the model. `clock` is monotonic seconds.
    """

    def __init__(
        self,
        engine: Engine,
        aligner: Aligner,
        *,
        pass_tokens: int,
        idle_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._aligner = aligner
        self._pass_tokens = pass_tokens
        self._idle_timeout_s = idle_timeout_s
        self._clock = clock
        self._pending: dict[int, _Waiting] = {}
        self._transcribing: set[int] = set()
        self._located: Future[None] | None = None
        self._state = AlignerState.UNLOADED
        self._error = ""
        self._failed_s = self._used_s = clock()
        self._last_pass_s = self._decoded_s = 0.0

    @property
    def info(self) -> EngineInfo:
        """What the engine says of itself, and the state of the aligner."""
        return replace(
            self._engine.info,
            aligner_id=self._aligner.aligner_id,
            aligner_state=self._state,
            aligner_error=self._error,
        )

    @property
    def loaded(self) -> bool:
        """Whether the model is; the aligner comes when it is needed."""
        return self._engine.loaded

    @property
    def room(self) -> int:
        """Places left; an alignment that waits takes one, and a pass's worth of them lets no more in.

        Not while the aligner is being found, which may take minutes: they would keep transcription out.
        """
        if self._state is AlignerState.LOADING:
            return self._engine.room
        if sum(waiting.tokens for waiting in self._pending.values()) >= self._pass_tokens:
            return 0
        return max(0, self._engine.room - len(self._pending))

    def load(self) -> None:
        """Load the model. Raises `ModelUnavailable`."""
        self._engine.load()

    def unload(self) -> None:
        """Unload the model and the aligner."""
        self._unload_aligner()
        self._engine.unload()

    def admit(self, key: int, item: Utterance | AlignItem) -> None:
        """Take a row in. Raises at once when the aligner could not be loaded a short while ago."""
        if isinstance(item, Utterance):
            self._engine.admit(key, item)
            self._transcribing.add(key)
            return
        if self._error and self._clock() - self._failed_s < RETRY_S:
            raise ModelUnavailable(self._error)
        self._pending[key] = _Waiting(item, self._aligner.cost(item))

    def step(self) -> Iterator[Outcome]:
        """Decode for every row, then at most one pass of the aligner."""
        if self._transcribing:
            began_s = self._clock()
            for outcome in self._engine.step():
                if isinstance(outcome, RowDone | RowFailed):
                    self._transcribing.discard(outcome.key)
                yield outcome
            self._decoded_s += self._clock() - began_s
        if self._pending and self._turn_of_the_aligner():
            yield from self._align()

    def drop(self, key: int) -> None:
        """Forget a row at once."""
        if self._pending.pop(key, None) is None:
            self._transcribing.discard(key)
            self._engine.drop(key)
        elif not self._pending and self._state is AlignerState.LOADING:
            # Nobody waits for it any more: it may be found, but is not loaded.
            self._state = AlignerState.UNLOADED

    def poll_idle(self, now_s: float) -> float | None:
        """Unload the aligner when it was idle for long enough; seconds until it is to be looked at again, or None."""
        if not self._aligner.loaded or self._pending or self._idle_timeout_s == 0:
            return None
        left_s = self._used_s + self._idle_timeout_s - now_s
        if left_s > 0:
            return left_s
        self._unload_aligner()
        return None

    def _turn_of_the_aligner(self) -> bool:
        return not self._transcribing or self._decoded_s >= self._last_pass_s

    def _align(self) -> Iterator[Outcome]:
        try:
            ready = self._aligner.loaded or self._made_ready()
        except Exception as error:  # whatever it is, only those who wait for the aligner hear of it
            yield from self._give_up(error)
            return
        if not ready:
            return
        began_s = self._clock()
        picked = self._picked()
        results = self._aligner.align([self._pending.pop(key).item for key in picked])
        self._used_s = self._clock()
        self._last_pass_s, self._decoded_s = self._used_s - began_s, 0.0
        for key, result in zip(picked, results, strict=True):
            yield RowDone(key, result) if isinstance(result, Alignment) else RowFailed(key, result)

    def _picked(self) -> list[int]:
        """What goes into one pass: the oldest first, as far as the tokens go, one at least."""
        picked, used = list[int](), 0
        for key, waiting in self._pending.items():
            used += waiting.tokens
            if picked and used > self._pass_tokens:
                break
            picked.append(key)
        return picked

    def _made_ready(self) -> bool:
        """Find the aligner in the background, then load it here; False until a step begins with it loaded: a load may
        take long, and the thread shows that it moves between that and the pass."""
        self._state = AlignerState.LOADING
        if self._located is None:
            self._located = _in_background(self._aligner.locate)
        if not self._located.done():
            if not self._transcribing:
                time.sleep(_PAUSE_S)
            return False
        self._located.result()
        self._aligner.load()
        self._located, self._error, self._state = None, "", AlignerState.LOADED
        self._used_s = self._clock()
        return False

    def _give_up(self, error: Exception) -> Iterator[Outcome]:
        """The aligner cannot be had: all who wait for it get the reason."""
        if not isinstance(error, AsrError):
            cause, error = error, ModelUnavailable(f"The aligner cannot be loaded ({type(error).__name__}).")
            error.__cause__ = cause
        self._located, self._error, self._failed_s = None, error.message, self._clock()
        self._state = AlignerState.FAILED
        waiting, self._pending = list(self._pending), {}
        for key in waiting:
            yield RowFailed(key, error)

    def _unload_aligner(self) -> None:
        if self._aligner.loaded:
            self._aligner.unload()
            self._state = AlignerState.UNLOADED


def _in_background(work: Callable[[], None]) -> Future[None]:
    """Run `work` on a thread of its own that does not keep the process alive."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except BaseException as error:  # it belongs to whoever asks for the result
            future.set_exception(error)
        else:
            future.set_result(None)

    threading.Thread(target=run, name="aligner-locate", daemon=True).start()
    return future
