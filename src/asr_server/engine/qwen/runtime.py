"""A loaded model and the schedule of its forward passes: encode, prefill, step. Lives as long as the weights do."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from asr_server.core.errors import EngineOutOfMemory, InvalidValue
from asr_server.engine.budget import expected_tokens
from asr_server.engine.protocol import Utterance
from asr_server.engine.qwen import answer, capacity, loading, memory, prefix_cache, prompt
from asr_server.engine.qwen.decoder import NoRoom, RowInput, SlotDecoder, SlotRow
from asr_server.engine.qwen.encoder import Window, WindowedEncoder
from asr_server.engine.qwen.frontend import LogMel, features, floor
from asr_server.engine.qwen.language_model import LanguageModel
from asr_server.engine.qwen.prefill import PrefillPolicy
from asr_server.engine.qwen.prefix_cache import CachedPrefix, PrefixCache


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """One row's work before its audio is encoded.

    `log10_mel` (128, T) are the unclamped frames of the whole clip, `clamp` its lower bound, `cached` what an earlier
    partial of the session left of its first windows. `budget`: most new tokens.
    """

    utterance: Utterance
    prompt: prompt.Prompt
    log10_mel: torch.Tensor
    clamp: float
    cached: CachedPrefix | None
    budget: int

    @property
    def mel(self) -> torch.Tensor:
        """The features still to be encoded."""
        done = self.cached.log10_mel.shape[1] if self.cached is not None else 0
        return features(self.log10_mel[:, done:], self.clamp)


class Runtime:
    """Weights with an encoder, a prompt builder and a decoder over them. Every call runs in inference mode."""

    out_of_memory: tuple[type[BaseException], ...] = (torch.OutOfMemoryError, MemoryError)
    no_room = NoRoom

    def __init__(self, parts: loading.Parts, max_batch: int, kv_budget_mb: int) -> None:
        self._parts = parts
        self._mel = LogMel(parts.processor.feature_extractor)
        self._encoder = WindowedEncoder(parts.tower)
        self._language_model = LanguageModel(parts.text)
        self._prompts = prompt.PromptBuilder(parts.processor)
        self._answers = answer.AnswerReader(parts.tokenizer)
        self._no_speech_id = self._prompts.no_speech_id
        self.capacity = _capacity(parts, max_batch, kv_budget_mb)
        self.decoder = SlotDecoder(self._language_model, parts.head, parts.end_ids, self.capacity)
        self.prefix_cache = PrefixCache(limit_bytes=self.capacity.prefix_cache_bytes)
        self._prepared: dict[SlotRow, Prepared] = {}
        self.prefill_policy = PrefillPolicy()

    @classmethod
    def load(cls, directory: Path, *, device: str, dtype: str, max_batch: int, kv_budget_mb: int) -> Runtime:
        """Load a checked checkpoint. Raises `ModelUnavailable`."""
        return cls(loading.load(directory, device=device, dtype=dtype), max_batch, kv_budget_mb)

    def report_to(self, on_progress: Callable[[], None]) -> None:
        """Call `on_progress` inside of every pass that may take long, from now on.

        On a CPU only: on a GPU a pass is queued in milliseconds, and each call would be a share of them.
        """
        if self._parts.device.type == "cpu":
            self._encoder.on_layer = self._language_model.on_layer = on_progress

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
        prepared = Prepared(work, rendered, log10_mel, clamp, cached, budget)
        if self.row_tokens(prepared) > self._parts.text.config.max_position_embeddings:
            raise InvalidValue("The prompt is too long for this model.", param="prompt")
        if self.row_tokens(prepared) >= self.capacity.tokens:
            raise EngineOutOfMemory("The prompt and the audio take more memory than KV_BUDGET_MB allows.")
        left = self._parts.text.config.max_position_embeddings - self._prompt_tokens(prepared)
        return replace(prepared, budget=min(budget, left))

    def _cached(self, work: Utterance, rendered: prompt.Prompt) -> CachedPrefix | None:
        cached = self.prefix_cache.get(work.session) if work.session is not None else None
        if cached is None or not cached.continues(work.audio, tuple(rendered.before.tolist())):
            return None
        return cached

    def tokens(self, prepared: Prepared) -> int:
        """Prompt and audio tokens that the row's prefill has to run."""
        audio = self.audio_tokens(prepared)
        skipped = prepared.cached.kv.shape[3] if prepared.cached is not None else 0
        return len(prepared.prompt.before) + audio + len(prepared.prompt.after) - skipped

    def row_tokens(self, prepared: Prepared) -> int:
        """Tokens that the row is expected to come to in all."""
        return self._prompt_tokens(prepared) + _expected_tokens(prepared)

    def _prompt_tokens(self, prepared: Prepared) -> int:
        rendered = prepared.prompt
        return len(rendered.before) + self.audio_tokens(prepared) + len(rendered.after)

    @torch.inference_mode()
    def seat(self, row: SlotRow, prepared: Prepared) -> None:
        """Give a prepared row its slot."""
        rendered, cached = prepared.prompt, prepared.cached
        before = rendered.before if cached is None else rendered.before[:0]
        windows = self._encoder.windows(prepared.mel, continued=cached is not None)
        after = torch.cat([rendered.after, torch.tensor(row.proposal(), dtype=torch.long)])
        embeds = self._language_model.embed(memory.upload(torch.cat([before, after]), self._parts.device))
        given = RowInput(embeds[: len(before)], windows, embeds[len(before) :], tail=1 + len(row.proposal()))
        row.expected = _expected_tokens(prepared)
        self.decoder.seat(row, given, cached.kv if cached is not None else None)
        self._prepared[row] = prepared

    @torch.inference_mode()
    def prefill(self, tokens: int, rows: int) -> list[SlotRow]:
        """Encode and run about so many tokens of the prompts of at most `rows` rows; those that decode from now on."""
        began_s = time.perf_counter()
        parts = self.decoder.next_input(tokens)[:rows]
        inputs = [(row.input, count) for row, count in parts if row.input is not None]
        missing = [given.missing(count) for given, count in inputs]
        uploaded = [Window(memory.upload(w.mel, self._parts.device), w.whole, w.tokens) for own in missing for w in own]
        encoded = iter(self._encoder(uploaded) if uploaded else [])
        for (given, _), own in zip(inputs, missing, strict=True):
            given.add([next(encoded) for _ in own])
        self.decoder.prefill(parts)
        self.prefill_policy.note_prefill(sum(count for _, count in parts), time.perf_counter() - began_s)
        ready = [row for row, _ in parts if row.input is None]
        for row in ready:
            try:
                self._keep(self.decoder.rows.index(row), self._prepared.pop(row))
            except self.out_of_memory:  # the row is seated and well: its next partial is slower, no more
                continue
        return ready

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
            kv=self.decoder.arena.copy(slot, end),
        )
        self.prefix_cache.put(work.session, cached)

    @torch.inference_mode()
    def step(self) -> None:
        """One forward pass for all rows."""
        began_s = time.perf_counter()
        self.decoder.step()
        self.prefill_policy.note_step(time.perf_counter() - began_s)

    @torch.inference_mode()
    def drop(self, row: SlotRow) -> None:
        """Take a row out of the batch."""
        self._prepared.pop(row, None)
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

    def read(self, ids: Sequence[int], language: str | None) -> answer.ParsedAnswer:
        """What generated ids say."""
        return self._answers.read(ids, language)

    def answer_stream(self, language: str | None) -> answer.AnswerStream:
        """Reads an answer while it is generated."""
        return answer.AnswerStream(self._answers, forced=language is not None)

    def audio_tokens(self, prepared: Prepared) -> int:
        """Tokens that the whole clip's audio became."""
        return self._encoder.tokens(prepared.log10_mel.shape[1])

    def figures(self) -> dict[str, Any]:
        """The fields of `EngineInfo` that are known once the model is loaded."""
        return {
            "slots": self.capacity.rows,
            "kv_budget_mb": (self.capacity.rows_bytes + self.capacity.prefix_cache_bytes) // memory.MIB,
            "kv_cache_mb": self.decoder.arena.nbytes // memory.MIB,
            "sessions_mb": self.prefix_cache.held_bytes // memory.MIB,
            **memory.gpu_figures(self._parts.device),
        }


def _expected_tokens(prepared: Prepared) -> int:
    work = prepared.utterance
    return min(prepared.budget, expected_tokens(len(work.audio)) + max(len(work.prefix), len(work.draft)))


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
