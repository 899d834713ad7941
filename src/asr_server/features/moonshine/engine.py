"""The `moonshine` engine: English speech to text on a CPU, without torch. Called from one thread."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from asr_server.core import idle
from asr_server.core.audio import s_to_samples
from asr_server.core.errors import EngineOutOfMemory, ModelUnavailable, TranscriptionFailed
from asr_server.engine.feature import Plan
from asr_server.engine.loops import token_budget, without_loop
from asr_server.engine.memory import MIB, free_bytes
from asr_server.engine.protocol import EngineInfo, Hypothesis, Tokens, Utterance, in_tokens
from asr_server.engine.row import Draft, Row, accepted
from asr_server.features.moonshine import package
from asr_server.schedule.model import Outcome, RowDelta, RowDone, RowFailed

if TYPE_CHECKING:
    from asr_server.features.moonshine.decoder import RowCache
    from asr_server.features.moonshine.model import MoonshineModel

# English speech has at most about 6.5 of this model's tokens a second; an answer with more is not a transcript.
_TOKENS_PER_S = 6.5
# Memory that a loaded model takes: the whole server has about 330 MB after one recording.
_LOADED_BYTES = 256 * MIB
# Without KV_BUDGET_MB, keys and values may take this share of the memory that is free after loading.
_MEMORY_SHARE = 0.25


@dataclass(slots=True, eq=False)
class _Work:
    """One admitted utterance."""

    utterance: Utterance
    row: Row  # its answer so far
    urgent: bool  # it goes before work that is not urgent
    cache: RowCache | None = None  # None until its audio is encoded
    sent: int = 0  # tokens that were handed out
    shown: int = 0  # characters that were handed out


class MoonshineEngine:
    """Implements `engine.protocol.Engine`. A step encodes at most one clip, so that decoding rows do not wait long.

    `on_progress` is called before each pass that may take long.
    """

    name = "moonshine"

    def __init__(self, plan: Plan, on_progress: Callable[[], None] = lambda: None) -> None:
        self._plan = plan
        self._on_progress = on_progress
        self._model: MoonshineModel | None = None
        self._work: dict[int, _Work] = {}
        self._slots = plan.max_batch  # fewer once it is loaded, if memory is short
        self._info = self._unloaded_info = EngineInfo(self.name, plan.model_id, plan.device, plan.dtype)

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def loaded(self) -> bool:
        return self._model is not None

    @property
    def model(self) -> MoonshineModel:
        """Return the loaded weights."""
        assert self._model is not None, "model before load()"
        return self._model

    @property
    def fits(self) -> bool:
        return free_bytes() >= _LOADED_BYTES

    @property
    def free_slots(self) -> int:
        return 0 if any(work.cache is None for work in self._work.values()) else self._slots - len(self._work)

    @property
    def urgent_slots(self) -> int:
        """Return how many more urgent rows may join; 0 while an urgent row waits to be encoded."""
        waits = any(work.cache is None and work.urgent for work in self._work.values())
        return 0 if waits else self._slots - len(self._work)

    def load(self) -> None:
        """Find, check and load the files, and plan the memory. Raises `ModelUnavailable`, `EngineOutOfMemory`."""
        files = package.locate()
        from asr_server.features.moonshine.model import SAMPLES_PER_STATE, MoonshineModel

        try:
            self._model = model = MoonshineModel(files)
        except MemoryError as error:
            raise EngineOutOfMemory("No memory is left for the model; free some.") from error
        except Exception as error:  # ONNX Runtime and the readers of the files each raise their own kinds
            raise ModelUnavailable(
                f"MODEL_ID={package.MODEL_ID}: the files of {package.DISTRIBUTION} cannot be loaded "
                f"({type(error).__name__}): {package.REMEDY}"
            ) from error
        idle.share_heaps()
        # Freeze the heap: full garbage collections would walk 200,000 objects, and the event loop wait 0.1 s for each.
        gc.collect()
        gc.freeze()
        samples = s_to_samples(self._plan.traits.max_audio_s)
        row_bytes = model.decoder.row_bytes(samples // SAMPLES_PER_STATE + 1, token_budget(samples, _TOKENS_PER_S))
        budget = self._plan.kv_budget_mb * MIB or int(free_bytes() * _MEMORY_SHARE / self._plan.shares)
        self._slots = max(1, min(self._plan.max_batch, budget // row_bytes))
        self._info = replace(
            self._unloaded_info,
            slots=self._slots,
            kv_budget_mb=budget // MIB,
            kv_cache_mb=self._slots * row_bytes // MIB,
        )

    def unload(self) -> None:
        """Free the weights, and return freed memory to the system."""
        self._model = None
        self._work.clear()
        self._info = self._unloaded_info
        gc.unfreeze()
        gc.collect()
        idle.trim_heap()

    def admit(self, key: int, item: Utterance, urgent: bool = False) -> None:
        """Admit a row. One of the next steps encodes its audio, urgent rows first."""
        item = in_tokens(item, self.model.encode_text)
        row = Row(
            key=key,
            budget=token_budget(len(item.audio), _TOKENS_PER_S) + len(item.prefix),
            temperature=item.temperature,
            draft=Draft(item.draft) if item.draft else None,
            forced=item.prefix,
        )
        self._work[key] = _Work(item, row, urgent)

    def step(self, begin_s: float | None = None) -> Iterator[Outcome]:
        """Decode for every encoded row, then encode one waiting row and decode its first tokens."""
        model = self.model
        waiting = [work for work in self._work.values() if work.cache is None]
        decoding = [work for work in self._work.values() if work.cache is not None]
        if decoding:
            self._on_progress()
            yield from self._decode(model, decoding)
        if waiting:
            self._on_progress()
            work = min(waiting, key=lambda work: not work.urgent)
            try:
                work.cache = model.encode(work.utterance.audio, work.row.budget + 1)
            except Exception as error:  # whatever this audio provokes, the other rows continue
                yield self._failed(work.row, error)
                return
            yield from self._decode(model, [work])

    def drop(self, key: int) -> None:
        self._work.pop(key, None)

    def _decode(self, model: MoonshineModel, works: Sequence[_Work]) -> Iterator[Outcome]:
        try:
            self._pass(model, works)
        except Exception as error:
            if len(works) == 1:
                yield self._failed(works[0].row, error)
                return
            # No row has moved. Run each row by itself, to find out which one is at fault.
            for work in works:
                yield from self._decode(model, [work])
            return
        for work in works:
            yield from self._outcomes(model, work)

    def _pass(self, model: MoonshineModel, works: Sequence[_Work]) -> None:
        """Run one forward pass for all rows: one new token each, more if a draft proves right."""
        proposals = [work.row.proposal() for work in works]
        logits = model.forward([(work.row, work.cache) for work in works if work.cache is not None], proposals)
        # Choose all tokens before the first row moves, so that a pass that fails may be tried again.
        choices = [model.choose(own, work.row, work.utterance.seed) for work, own in zip(works, logits, strict=True)]
        for work, proposal, (chosen, logprobs) in zip(works, proposals, choices, strict=True):
            assert work.cache is not None
            count = accepted(proposal, chosen) + 1
            work.cache.length += count
            work.row.note(chosen[:count], logprobs[:count], model.end_ids)

    def _outcomes(self, model: MoonshineModel, work: _Work) -> Iterator[Outcome]:
        """Yield the new tokens of a row's last pass, and the row's end."""
        row = work.row
        if row.overflowed:
            yield self._failed(row, TranscriptionFailed("The model's numbers left their range on this audio."))
            return
        new = len(row.ids) - work.sent
        if new:
            text = ""
            if work.utterance.stream:
                spoken = model.tokenizer.read(row.ids).text
                text, work.shown = spoken[work.shown :], max(work.shown, len(spoken))
            yield RowDelta(row.key, Tokens(tuple(row.ids[work.sent :]), tuple(row.logprobs[work.sent :]), text))
            work.sent = len(row.ids)
        if row.finished:
            self.drop(row.key)
            yield RowDone(row.key, self._hypothesis(model, work))

    def _hypothesis(self, model: MoonshineModel, work: _Work) -> Hypothesis:
        row = work.row
        keep = without_loop(row.ids, row.looping) if row.looping else len(row.ids)
        ids = tuple(row.ids[:keep])
        answer = model.tokenizer.read(ids)
        return Hypothesis(
            text=answer.text,
            language=work.utterance.language or (package.LANGUAGE if answer.text else ""),
            ids=ids,
            logprobs=tuple(row.logprobs[:keep]),
            finish=row.finish,
            audio_tokens=work.cache.frames if work.cache is not None else 0,
            prompt_tokens=1,
            passes=row.passes,
            offsets=answer.offsets,
            pieces=answer.pieces,
        )

    def _failed(self, row: Row, error: Exception) -> RowFailed:
        self.drop(row.key)
        if isinstance(error, MemoryError):
            return RowFailed(row.key, EngineOutOfMemory("No memory is left for this audio."))
        return RowFailed(row.key, error)
