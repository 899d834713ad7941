"""The `qwen` engine: audio in, hypotheses out, one decode step at a time. Driven by one thread; knows no queue."""

from __future__ import annotations

import ctypes
import gc
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from asr_server.core import settings
from asr_server.core.errors import EngineOutOfMemory, TranscriptionFailed
from asr_server.engine.plan import Plan
from asr_server.engine.protocol import EngineInfo, Finish, Hypothesis, Tokens, Utterance
from asr_server.engine.qwen import checkpoint
from asr_server.scheduling.ports import Delta, Done, Failed, Outcome

if TYPE_CHECKING:
    from asr_server.engine.qwen.decoder import Row
    from asr_server.engine.qwen.runtime import Runtime

SAMPLE_RATE = 16_000
# Speech is 3 to 5 text tokens a second in the densest languages; 12 leaves room without letting a loop run for long.
_TOKENS_PER_S = 12
_MIN_TOKENS = 32


def token_budget(samples: int) -> int:
    """Most new tokens for that many samples of audio at 16 kHz: 12 a second, at least 32."""
    return max(_MIN_TOKENS, math.ceil(samples / SAMPLE_RATE * _TOKENS_PER_S))


@dataclass(slots=True, eq=False)
class _Work:
    utterance: Utterance
    row: Row | None = None
    audio_tokens: int = 0
    prompt_tokens: int = 0


class QwenEngine:
    """Implements `engine.protocol.Engine` over the SDK's modules. torch is imported by `load`, not before."""

    name = "qwen"

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._runtime: Runtime | None = None
        self._work: dict[int, _Work] = {}
        self._info = EngineInfo(self.name, plan.model_id, plan.device, plan.dtype)

    @property
    def info(self) -> EngineInfo:
        """As of the last load, unload or finished row."""
        return self._info

    @property
    def loaded(self) -> bool:
        """Whether the weights are in memory."""
        return self._runtime is not None

    @property
    def room(self) -> int:
        """Free rows."""
        return self._plan.max_batch - len(self._work)

    def load(self) -> None:
        """Find, check and load the checkpoint. Raises `ModelUnavailable`."""
        directory = checkpoint.locate(self._plan.model_id)
        # OpenMP threads spin at every barrier by default. A decode step has hundreds of barriers: beside any other busy
        # process on the same cores that made a 7 s clip take 2.6 s instead of 40 ms (2 cores, 2026-11). Read at import.
        settings.prefer("OMP_WAIT_POLICY", "PASSIVE")
        from asr_server.engine.qwen.runtime import Runtime

        self._runtime = Runtime.load(directory, device=self._plan.device, dtype=self._plan.dtype)
        self._publish()

    def unload(self) -> None:
        """Free the weights, the cache, and what the C library holds back."""
        self._runtime = None
        self._work.clear()
        gc.collect()
        from asr_server.engine.qwen.runtime import release_accelerator

        release_accelerator()
        _return_heap()
        self._publish()

    def admit(self, key: int, item: Utterance) -> None:
        """Take a row in; its prefill is the next step's."""
        self._work[key] = _Work(item)

    def step(self) -> Iterator[Outcome]:
        """Decode one token for every seated row, then seat and prefill what was admitted since."""
        runtime = self._runtime
        assert runtime is not None, "step() before load()"
        seated = len(runtime.decoder.rows)
        waiting = [key for key, work in self._work.items() if work.row is None]
        if seated:
            yield from self._decode(runtime, seated)
        for key in waiting:
            yield self._prefill(runtime, key)
        yield from self._retire(runtime)

    def drop(self, key: int) -> None:
        """Forget a row at once."""
        work = self._work.pop(key, None)
        if work is not None and work.row is not None and self._runtime is not None:
            self._runtime.drop(work.row)

    def _decode(self, runtime: Runtime, seated: int) -> Iterator[Outcome]:
        before = [(row, len(row.ids)) for row in runtime.decoder.rows]
        runtime.step(seated)
        for row, count in before:
            if len(row.ids) > count:
                yield _delta(row, count)

    def _prefill(self, runtime: Runtime, key: int) -> Outcome:
        work = self._work[key]
        try:
            row, work.audio_tokens, work.prompt_tokens = runtime.prefill(
                key, work.utterance, token_budget(len(work.utterance.audio))
            )
        except runtime.out_of_memory:
            self.drop(key)
            return Failed(key, EngineOutOfMemory("The accelerator has no memory left for this audio."))
        except Exception as error:  # whatever this audio provokes, the other rows go on
            self.drop(key)
            failure = TranscriptionFailed("The engine failed on this audio.")
            failure.__cause__ = error
            return Failed(key, failure)
        work.row = row
        return _delta(row, 0)

    def _retire(self, runtime: Runtime) -> Iterator[Outcome]:
        finished = [row for row in runtime.decoder.rows if row.finished]
        for row in finished:
            work = self._work[row.key]
            self.drop(row.key)
            language, text = runtime.read(row.ids, work.utterance.language)
            yield Done(
                row.key,
                Hypothesis(
                    text=text,
                    language=language,
                    ids=tuple(row.ids),
                    logprobs=tuple(row.logprobs),
                    finish=Finish.END if row.ended else Finish.BUDGET,
                    audio_tokens=work.audio_tokens,
                    prompt_tokens=work.prompt_tokens,
                ),
            )
        if finished:
            self._publish()

    def _publish(self) -> None:
        figures = self._runtime.memory() if self._runtime is not None else {}
        self._info = replace(EngineInfo(self.name, self._plan.model_id, self._plan.device, self._plan.dtype), **figures)


def _delta(row: Row, start: int) -> Delta:
    return Delta(row.key, Tokens(tuple(row.ids[start:]), tuple(row.logprobs[start:])))


def _return_heap() -> None:
    """Ask glibc to give freed pages back to the system; without this an unloaded model still counts as resident."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):  # another C library: it has its own policy
        return
