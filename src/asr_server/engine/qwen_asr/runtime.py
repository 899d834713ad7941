"""A loaded model and the schedule of its forward passes: encode, prefill, step. Lives as long as the weights do."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from loguru import logger
from torch import nn

from asr_server.core.errors import (
    AsrError,
    EngineFailed,
    EngineOutOfMemory,
    InvalidValue,
)
from asr_server.engine.budget import expected_tokens
from asr_server.engine.feature import Plan
from asr_server.engine.protocol import Option, Utterance, Written
from asr_server.engine.qwen_asr import answer, capacity, footprint, loading, prompt
from asr_server.engine.qwen_asr.decoder import NoRoom, RowInput, SlotDecoder, SlotRow
from asr_server.engine.qwen_asr.encoder import WindowedEncoder
from asr_server.engine.qwen_asr.frontend import LogMel
from asr_server.engine.qwen_asr.language_model import LanguageModel
from asr_server.engine.qwen_asr.prefill import PrefillPolicy
from asr_server.engine.qwen_asr.prefix_cache import PrefixCache
from asr_server.engine.qwen_asr.windowed_audio import Clip, LoadedEncoder, WindowedAudio
from asr_server.engine.torch import device, faults, memory, quantization
from asr_server.engine.torch.linear import MakeLinear
from asr_server.engine.torch.step_graphs import CudaCapture


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """One row's work before its audio is encoded."""

    utterance: Utterance
    prompt: prompt.Prompt
    clip: Clip
    budget: int  # the most new tokens


class Runtime:
    """Weights with an encoder, a prompt builder and a decoder over them. Every call runs in inference mode."""

    no_room = NoRoom

    def __init__(
        self,
        parts: loading.Parts,
        limits: capacity.Limits,
        options: tuple[Option, ...] = (),
        *,
        encoder: LoadedEncoder,
        layers: quantization.Layers,
        quantize: str = "",
        compiled: bool = False,
    ) -> None:
        """`layers`: those of the format `quantize`."""
        self._parts = parts
        self._encoder = encoder.encoder
        self._language_model = LanguageModel(parts.text, layers.language_model, compiled=compiled)
        self._prompts = prompt.PromptBuilder(parts.processor)
        self._answers = answer.AnswerReader(parts.tokenizer)
        self._options = (*options, *layers.options(quantize))
        self.capacity = _capacity(parts, limits)
        head = layers.head(parts.head.weight) if layers.head else parts.head
        self.decoder = SlotDecoder(self._language_model, head, parts.end_ids, self.capacity, self._prompts.no_speech_id)
        self.prefix_cache = PrefixCache(limit_bytes=self.capacity.prefix_cache_bytes)
        self._audio = encoder.audio(LogMel(parts.processor.feature_extractor), self.prefix_cache)
        self.prefill_policy = PrefillPolicy()

    @classmethod
    def load(cls, directory: Path, plan: Plan) -> Runtime:
        """Load a checked checkpoint. Raises `ModelUnavailable`, `EngineOutOfMemory`, `EngineFailed`."""
        try:
            if plan.cpu_threads:
                torch.set_num_threads(plan.cpu_threads)  # of this thread's passes: the one that loads runs them
            dtype, options = device.prepare(plan.device, plan.dtype, plan.quantize)
            added = [feature.encoders for feature in plan.features if feature.encoders is not None]
            for encoders in added:
                encoders.check(plan, directory)
            parts = loading.load(directory, device=plan.device, dtype=dtype)
            layers = quantization.layers(plan.quantize, parts.device.type)
            loaded = (encoders.load(plan, directory, parts, layers.encoder) for encoders in added)
            encoder = next(filter(None, loaded), None) or _windowed(parts, layers.encoder)
            if not encoder.uses_tower:
                parts = replace(parts, tower=nn.Identity())  # its weights are not kept
            reserved = footprint.aligner_bytes(plan, dtype.itemsize)
            limits = capacity.Limits(plan.max_batch, plan.kv_budget_mb, reserved, plan.shares)
            found = (*options, *encoder.options)
            return cls(
                parts, limits, found, encoder=encoder, layers=layers, quantize=plan.quantize, compiled=plan.compiled
            )
        except Exception as error:
            raise faults.load_failure(error) from error

    def attempt(self, run: Callable[[], None]) -> AsrError | None:
        """Run a pass. Returns why it failed, None if it did not. Raises `EngineFailed`.

        Where memory runs out, what is kept of live sessions is given back and the pass is run once more. That happens
        outside of `except`: there the traceback would keep all tensors of the failed pass.
        """
        for first in (True, False):
            try:
                run()
                return None
            except Exception as error:  # whatever one row provokes, the others go on
                failure = faults.failure(error)
            if isinstance(failure, EngineFailed):
                raise failure
            short = isinstance(failure, EngineOutOfMemory) and not isinstance(failure.__cause__, NoRoom)
            if not (first and short and self._give_back()):
                break
        return failure

    def _give_back(self) -> bool:
        """Free what is not needed for an answer. Whether there may be more memory now."""
        held = len(self.prefix_cache) > 0
        self.prefix_cache.clear()
        memory.give_back()
        return held or self._parts.device.type == "cuda"

    @property
    def warm_up_batches(self) -> tuple[tuple[float, int], ...]:
        """Return the batches to run once before the model counts as loaded: seconds of audio, and rows.

        On a CPU the first pass alone takes longer than those after it. On a GPU kernels are loaded, and chosen, for
        each kind of shape: prompts of some lengths, and steps of ever more rows.
        """
        if self._parts.device.type == "cpu":
            return ((1.0, 1),)
        sizes = [2**n for n in range(1, 9) if 2**n < self.capacity.rows]
        return ((1.0, 1), (8.0, 1), (30.0, 1), *((1.0, rows) for rows in sizes), (1.0, self.capacity.rows))

    @torch.inference_mode()
    def record_steps(self, on_each: Callable[[], None]) -> None:
        """Record decode steps as CUDA graphs, before the first row. Raises what a pass raises."""
        began_s = time.perf_counter()
        count = self.decoder.record_steps(CudaCapture(self._parts.device), on_each)
        took_s = round(time.perf_counter() - began_s, 1)
        logger.info("decode steps recorded as CUDA graphs", count=count, took_s=took_s)

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
        clip = self._audio.prepare(work, tuple(rendered.before.tolist()))
        prepared = Prepared(work, rendered, clip, budget)
        if self.row_tokens(prepared) > self._parts.text.config.max_position_embeddings:
            raise InvalidValue("The prompt is too long for this model.", param="prompt")
        if self.row_tokens(prepared) >= self.capacity.tokens:
            raise EngineOutOfMemory("The prompt and the audio take more memory than KV_BUDGET_MB allows.")
        left = self._parts.text.config.max_position_embeddings - self._prompt_tokens(prepared)
        return replace(prepared, budget=min(budget, left))

    def tokens(self, prepared: Prepared) -> int:
        """Prompt and audio tokens that the row's prefill has to run."""
        audio = self.audio_tokens(prepared)
        skipped = prepared.clip.kv.shape[3] if prepared.clip.kv is not None else 0
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
        rendered, kv = prepared.prompt, prepared.clip.kv
        before = rendered.before if kv is None else rendered.before[:0]
        windows = prepared.clip.windows()
        after = torch.cat([rendered.after, torch.tensor(row.proposal(), dtype=torch.long)])
        embeds = self._language_model.embed(memory.upload(torch.cat([before, after]), self._parts.device))
        given = RowInput(embeds[: len(before)], windows, embeds[len(before) :], tail=1 + len(row.proposal()))
        row.expected = _expected_tokens(prepared)
        self.decoder.seat(row, given, kv)

    @torch.inference_mode()
    def prefill(self, parts: Sequence[tuple[SlotRow, int]]) -> None:
        """Encode and run that many tokens of the prompts of those rows; see `SlotDecoder.next_input`."""
        began_s = time.perf_counter()
        inputs = [(row.input, count) for row, count in parts if row.input is not None]
        missing = [given.missing(count) for given, count in inputs]
        uploaded = [replace(w, mel=memory.upload(w.mel, self._encoder.device)) for own in missing for w in own]
        encoded = iter(self._encoder(uploaded) if uploaded else [])
        for (given, _), own in zip(inputs, missing, strict=True):
            given.add([next(encoded) for _ in own])
        self.decoder.prefill(parts)
        self.prefill_policy.note_prefill(sum(count for _, count in parts), time.perf_counter() - began_s)

    @torch.inference_mode()
    def keep(self, row: SlotRow, prepared: Prepared) -> None:
        """Leave the closed windows of a session's row, whose prompt was run, for its next partial.

        Where memory is short they are not kept: that partial is slower, no more. Raises `EngineFailed`.
        """
        try:
            self._keep(row, prepared)
        except Exception as error:
            if not isinstance(failure := faults.failure(error), EngineOutOfMemory):
                raise failure from error

    def _keep(self, row: SlotRow, prepared: Prepared) -> None:
        work = prepared.utterance
        if work.session is None:
            return
        if work.last:
            self.prefix_cache.forget(work.session)
            return
        slot, before = self.decoder.rows.index(row), tuple(prepared.prompt.before.tolist())
        self._audio.keep(work, before, prepared.clip, lambda tokens: self.decoder.arena.copy(slot, tokens))

    @torch.inference_mode()
    def step(self) -> None:
        """Run one forward pass for all rows."""
        began_s = time.perf_counter()
        self.decoder.step()
        self.prefill_policy.note_step(time.perf_counter() - began_s)

    @torch.inference_mode()
    def drop(self, row: SlotRow) -> None:
        """Take a row out of the batch. Raises `EngineFailed`."""
        try:
            self.decoder.drop(row)
        except Exception as error:
            raise faults.failure(error) from error

    def beginnings(self, work: Utterance) -> tuple[tuple[int, ...], ...]:
        """Return the beginnings that the answer may have, in ids; () where its language is forced, or may be any."""
        return self._prompts.beginnings(work.languages) if work.languages and work.language is None else ()

    def generator(self, work: Utterance) -> torch.Generator | None:
        """Return the source of chance for a sampled row; None for a greedy one."""
        if work.temperature == 0:
            return None
        return torch.Generator(self._parts.device).manual_seed(work.seed)

    def read(self, ids: Sequence[int], language: str | None) -> answer.ParsedAnswer:
        """Read generated ids."""
        return self._answers.read(ids, language)

    def answer_stream(self, language: str | None) -> answer.AnswerStream:
        """Reads an answer while it is generated."""
        return answer.AnswerStream(self._answers, forced=language is not None)

    def encode(self, written: Written, forced: bool) -> tuple[int, ...]:
        """Ids of an answer with the words of another model; see `protocol.in_tokens`."""
        return self._prompts.answer(written.text, written.language, forced=forced)

    def audio_tokens(self, prepared: Prepared) -> int:
        """Tokens that the whole clip's audio became."""
        return prepared.clip.tokens

    def figures(self) -> dict[str, Any]:
        """Return the fields of `EngineInfo` that are known once the model is loaded."""
        return {
            "dtype": str(self._parts.dtype).removeprefix("torch."),
            "options": self._options,
            "slots": self.capacity.rows,
            "kv_budget_mb": (self.capacity.rows_bytes + self.capacity.prefix_cache_bytes) // memory.MIB,
            "kv_cache_mb": self.decoder.arena.nbytes // memory.MIB,
            "sessions_mb": self.prefix_cache.held_bytes // memory.MIB,
            **memory.gpu_figures(self._parts.device),
        }


def _windowed(parts: loading.Parts, make_linear: MakeLinear) -> LoadedEncoder:
    encoder = WindowedEncoder(parts.tower, make_linear)
    return LoadedEncoder(encoder, partial(WindowedAudio, encoder))


def _expected_tokens(prepared: Prepared) -> int:
    work = prepared.utterance
    return min(prepared.budget, expected_tokens(len(work.audio)) + max(len(work.prefix), len(work.draft)))


def _capacity(parts: loading.Parts, limits: capacity.Limits) -> capacity.Capacity:
    config = parts.text.config
    free_bytes = memory.free_bytes(parts.device) - memory.mapped_bytes(parts.tower, parts.text, parts.head)
    return capacity.plan(
        limits,
        free_bytes=max(0, free_bytes),
        token_bytes=capacity.token_bytes(
            layers=config.num_hidden_layers,
            kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            item_bytes=parts.dtype.itemsize,
        ),
        device=parts.device.type,
    )
