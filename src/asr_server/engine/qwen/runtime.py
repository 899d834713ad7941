"""A loaded model and the schedule of its forward passes: encode, prefill, step. Lives as long as the weights do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from asr_server.core.errors import InvalidValue
from asr_server.engine.plan import Plan
from asr_server.engine.protocol import Utterance
from asr_server.engine.qwen import capacity, loading, memory, prefix_cache, progress, prompt
from asr_server.engine.qwen.decoder import Prefill, SlotDecoder, SlotRow
from asr_server.engine.qwen.encoder import WindowedEncoder
from asr_server.engine.qwen.frontend import LogMel, features, floor
from asr_server.engine.qwen.prefix_cache import CachedPrefix, PrefixCache


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """One row's work before its audio is encoded.

    `log10_mel` (128, T) are the unclamped frames of the whole clip, `clamp` its lower bound, `cached` what an earlier
    partial of the session left of its first windows.
    """

    utterance: Utterance
    prompt: prompt.Prompt
    log10_mel: torch.Tensor
    clamp: float
    cached: CachedPrefix | None

    @property
    def mel(self) -> torch.Tensor:
        """The features still to be encoded."""
        done = self.cached.log10_mel.shape[1] if self.cached is not None else 0
        return features(self.log10_mel[:, done:], self.clamp)


class Runtime:
    """Weights with an encoder, a prompt builder and a decoder over them. Every call runs in inference mode."""

    out_of_memory: tuple[type[BaseException], ...] = (torch.OutOfMemoryError, MemoryError)

    def __init__(self, parts: loading.Parts, max_batch: int, kv_budget_mb: int) -> None:
        self._parts = parts
        self._mel = LogMel(parts.processor.feature_extractor)
        self._encoder = WindowedEncoder(parts.tower)
        self._prompts = prompt.PromptBuilder(parts.processor)
        self._no_speech_id = self._prompts.no_speech_id
        self.capacity = _capacity(parts, max_batch, kv_budget_mb)
        self.decoder = SlotDecoder(parts.text, parts.head, parts.end_ids, self.capacity)
        self.prefix_cache = PrefixCache(limit_bytes=self.capacity.prefix_cache_bytes)

    @classmethod
    def load(cls, directory: Path, plan: Plan) -> Runtime:
        """Load a checked checkpoint. Raises `ModelUnavailable`."""
        if plan.cpu_threads:
            torch.set_num_threads(plan.cpu_threads)  # of this thread's passes: the one that loads runs them
        parts = loading.load(directory, device=plan.device, dtype=plan.dtype)
        return cls(parts.in_int8() if plan.int8 else parts, plan.max_batch, plan.kv_budget_mb)

    def report_to(self, on_progress: Callable[[], None]) -> None:
        """Call `on_progress` inside of every pass that may take long, from now on."""
        progress.report_to(on_progress, self._parts.tower, self._parts.text)

    @torch.inference_mode()
    def prepare(self, work: Utterance, budget: int) -> Prepared:
        """Front end and prompt of one row. Raises `InvalidValue` when prompt and audio exceed the model's positions."""
        rendered = self._prompts.build(context=work.context, language=work.language)
        cached = self._cached(work, rendered)
        log10_mel = self._mel.log10_mel(work.audio, cached.log10_mel.shape[1] if cached is not None else 0)
        if cached is not None:
            log10_mel = torch.cat([cached.log10_mel, log10_mel], dim=1)
        clamp = floor(log10_mel)
        if cached is not None and not cached.exact_under(clamp):
            cached = None
        prepared = Prepared(work, rendered, log10_mel, clamp, cached)
        if self.row_tokens(prepared, budget) > self._parts.text.config.max_position_embeddings:
            raise InvalidValue("The prompt is too long for this model.", param="prompt")
        return prepared

    def _cached(self, work: Utterance, rendered: prompt.Prompt) -> CachedPrefix | None:
        cached = self.prefix_cache.get(work.session) if work.session is not None else None
        if cached is None or not cached.continues(work.audio, tuple(rendered.before.tolist())):
            return None
        return cached

    def tokens(self, prepared: Prepared) -> int:
        """Prompt and audio tokens that the row's prefill has to run."""
        audio = self.audio_tokens(prepared)
        skipped = prepared.cached.kv[0][0].shape[1] if prepared.cached is not None else 0
        return len(prepared.prompt.before) + audio + len(prepared.prompt.after) - skipped

    def row_tokens(self, prepared: Prepared, budget: int) -> int:
        """Tokens that the row may come to in all."""
        rendered = prepared.prompt
        return len(rendered.before) + self.audio_tokens(prepared) + len(rendered.after) + budget

    @torch.inference_mode()
    def prefill(self, rows: Sequence[tuple[SlotRow, Prepared]]) -> None:
        """Encode the audio of several rows in one batch, run their prompts in one pass, take their first tokens."""
        encoded = self._encoder(
            [memory.upload(p.mel, self._parts.device) for _, p in rows],
            continued=[p.cached is not None for _, p in rows],
        )
        first = len(self.decoder.rows)
        self.decoder.prefill([self._start(row, p, audio) for (row, p), audio in zip(rows, encoded, strict=True)])
        for slot, (_, prepared) in enumerate(rows, first):
            try:
                self._keep(slot, prepared)
            except self.out_of_memory:  # the rows are seated and well: their next partials are slower, no more
                continue

    def _start(self, row: SlotRow, prepared: Prepared, audio: torch.Tensor) -> Prefill:
        rendered, cached = prepared.prompt, prepared.cached
        before = [self.decoder.embed(rendered.before)] if cached is None else []
        embeds = torch.cat([*before, audio, self.decoder.embed(rendered.after)])
        return Prefill(row, embeds, cached.kv if cached is not None else None)

    def _keep(self, slot: int, prepared: Prepared) -> None:
        """Leave the closed windows of a session's row for its next partial."""
        work, old = prepared.utterance, prepared.cached
        if work.session is None:
            return
        if work.last:
            self.prefix_cache.forget(work.session)
            return
        closed_samples = self._encoder.window_frames * self._mel.hop
        windows = max(0, len(work.audio) - self._mel.reach) // closed_samples
        if windows == 0 or (old is not None and windows == old.windows):
            return
        frames, samples = windows * self._encoder.window_frames, windows * closed_samples
        log10_mel = prepared.log10_mel[:, :frames].clone()
        end = len(prepared.prompt.before) + windows * self._encoder.window_tokens
        cached = CachedPrefix(
            before=tuple(prepared.prompt.before.tolist()),
            samples=samples,
            reach=self._mel.reach,
            probe=prefix_cache.probe(work.audio, samples),
            log10_mel=log10_mel,
            lowest=float(log10_mel.min()),
            floor=prepared.clamp,
            windows=windows,
            kv=self.decoder.cache.read(slot, 0, end),
        )
        self.prefix_cache.put(work.session, cached)

    @torch.inference_mode()
    def step(self) -> None:
        """One forward pass for all rows."""
        self.decoder.step()

    @torch.inference_mode()
    def drop(self, row: SlotRow) -> None:
        """Take a row out of the batch."""
        self.decoder.drop(row)

    @property
    def no_speech_id(self) -> int:
        """The token that stands second in an answer that hears no speech."""
        return self._no_speech_id

    def generator(self, work: Utterance) -> torch.Generator | None:
        """The source of chance for a sampled row; None for a greedy one."""
        if work.temperature == 0:
            return None
        return torch.Generator(self._parts.device).manual_seed(work.seed)

    def read(self, ids: Sequence[int], language: str | None) -> prompt.ParsedAnswer:
        """What generated ids say."""
        return prompt.read(self._parts.tokenizer, list(ids), language)

    def partial_text(self, ids: Sequence[int], language: str | None) -> str:
        """The text of an answer that is not at its end yet."""
        return prompt.partial_text(self._parts.tokenizer, list(ids), forced=language is not None)

    def audio_tokens(self, prepared: Prepared) -> int:
        """Tokens that the whole clip's audio became."""
        return self._encoder.tokens(prepared.log10_mel.shape[1])

    def figures(self) -> dict[str, Any]:
        """The fields of `EngineInfo` that are known once the model is loaded."""
        return {
            "slots": self.capacity.rows,
            "kv_budget_mb": (self.capacity.rows_bytes + self.capacity.prefix_cache_bytes) // memory.MIB,
            "kv_cache_mb": self.decoder.cache.nbytes // memory.MIB,
            "sessions_mb": self.prefix_cache.held_bytes // memory.MIB,
            **memory.gpu_figures(self._parts.device),
        }


def _capacity(parts: loading.Parts, max_batch: int, kv_budget_mb: int) -> capacity.Capacity:
    config = parts.text.config
    return capacity.plan(
        free_bytes=memory.free_bytes(parts.device),
        kv_budget_mb=kv_budget_mb,
        max_batch=max_batch,
        token_bytes=capacity.token_bytes(
            layers=config.num_hidden_layers,
            kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            item_bytes=parts.dtype.itemsize,
        ),
        device=parts.device.type,
    )
