"""A loaded model of Qwen3-ASR: utterances to rows, and tokens to answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from asr_server.core.errors import EngineOutOfMemory, InvalidValue
from asr_server.engine.feature import OPENVINO, Plan
from asr_server.engine.loops import expected_tokens
from asr_server.engine.protocol import Option, Utterance
from asr_server.engine.qwen_asr import answer, checkpoint, decoder, loading, prompt
from asr_server.engine.qwen_asr.decoder import SlotDecoder, SlotRow
from asr_server.engine.qwen_asr.encoder import WindowedEncoder
from asr_server.engine.qwen_asr.frontend import LogMel
from asr_server.engine.qwen_asr.prefix_cache import PrefixCache
from asr_server.engine.qwen_asr.windowed_audio import Clip, LoadedEncoder, WindowedAudio
from asr_server.engine.row import Draft
from asr_server.engine.torch import device, linear, memory
from asr_server.engine.torch.linear import MakeLinear
from asr_server.engine.torch.memory import Limits
from asr_server.engine.torch.row_runtime import RowRuntime
from asr_server.engine.torch.slots import RowInput

if TYPE_CHECKING:
    from asr_server.engine.qwen_asr.compiled_decoder import CompiledDecoder

    # A decoder, its capacity, and what is known of its layers.
    Made = tuple[SlotDecoder | CompiledDecoder, memory.Capacity, tuple[Option, ...]]
    MakeDecoder = Callable[[loading.Parts, Limits, int], Made]

# Parameters of the released aligner, for one that is not downloaded yet: an encoder of 24 x 1024, a language model of
# 28 x 1024 with 151,936 words, a head of 5,000 slots.
_RELEASED_ALIGNER = 920_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """One row's work before its audio is encoded."""

    utterance: Utterance
    prompt: prompt.Prompt
    clip: Clip
    budget: int  # the most new tokens


class Runtime(RowRuntime[Prepared, SlotRow]):
    """Weights with an encoder, a prompt builder and a decoder over them."""

    steps = "decode steps"
    decoder: SlotDecoder | CompiledDecoder

    def __init__(
        self,
        parts: loading.Parts,
        limits: Limits,
        options: tuple[Option, ...],
        *,
        encoder: LoadedEncoder,
        make_decoder: MakeDecoder,
    ) -> None:
        self._parts = parts
        self._encoder = encoder.encoder
        self.prompts = prompt.PromptBuilder(parts.processor)
        self.answers = answer.AnswerReader(parts.tokenizer)
        decoder, planned, own = make_decoder(parts, limits, self.prompts.no_speech_id)
        self._options = (*options, *own)
        recorded = (decoder.record_prompts, self._encoder.record) if isinstance(decoder, SlotDecoder) else ()
        super().__init__(decoder, planned, (self._encoder, decoder.model), recorded)
        self.prefix_cache = PrefixCache(limit_bytes=planned.prefix_cache_bytes)
        self._audio = encoder.audio(LogMel(parts.processor.feature_extractor, self._encoder.device), self.prefix_cache)

    @classmethod
    def load(cls, directory: Path, plan: Plan, on_progress: Callable[[], None] = lambda: None) -> Runtime:
        """Load a checked checkpoint. `on_progress` is called while a graph is made. Raises what loading raises."""
        dtype, options = device.prepare(plan.device, plan.dtype, plan.quantize, threads=plan.cpu_threads)
        added = [feature.encoders for feature in plan.features if feature.encoders is not None]
        for encoders in added:
            encoders.check(plan, directory)
        compiled = plan.runtime == OPENVINO
        parts = loading.load(directory, device=plan.device, dtype="auto" if compiled else dtype)
        if compiled:
            parts.tower.to(dtype)  # the encoder alone computes in torch
        layers = linear.layers(plan.quantize, parts.device.type)
        loaded = (encoders.load(plan, directory, parts, layers.encoder) for encoders in added)
        encoder = next(filter(None, loaded), None) or _windowed(parts, layers.encoder)
        if not encoder.uses_tower:
            parts = replace(parts, tower=nn.Identity())  # its weights are not kept
        limits = Limits(plan.max_batch, plan.kv_budget_mb, aligner_bytes(plan, dtype.itemsize), plan.shares)
        make: MakeDecoder = partial(decoder.make, plan, layers)
        if compiled:
            from asr_server.engine.qwen_asr import compiled_decoder

            make = partial(compiled_decoder.make, directory, plan, on_progress)
        return cls(parts, limits, (*options, *encoder.options), encoder=encoder, make_decoder=make)

    def _forget(self) -> bool:
        held = len(self.prefix_cache) > 0
        self.prefix_cache.clear()
        return held

    @torch.inference_mode()
    def prepare(self, work: Utterance, budget: int) -> Prepared:
        """Front end and prompt of one row. Raises `InvalidValue` when prompt and audio exceed the model's positions."""
        rendered = self.prompts.build(context=work.context, language=work.language)
        clip = self._audio.prepare(work, tuple(rendered.before.tolist()))
        prepared = Prepared(work, rendered, clip, budget)
        if self.row_tokens(prepared) > self._parts.text.config.max_position_embeddings:
            raise InvalidValue("The prompt is too long for this model.", param="prompt")
        if self.row_tokens(prepared) >= self.capacity.tokens:
            raise EngineOutOfMemory("The prompt and the audio take more memory than KV_BUDGET_MB allows.")
        left = self._parts.text.config.max_position_embeddings - _prompt_tokens(prepared)
        return replace(prepared, budget=min(budget, left))

    def tokens(self, prepared: Prepared) -> int:
        """Prompt and audio tokens that the row's prefill has to run."""
        skipped = prepared.clip.kv.count if prepared.clip.kv is not None else 0
        return _prompt_tokens(prepared) - skipped

    def row_tokens(self, prepared: Prepared) -> int:
        """Tokens that the row is expected to come to in all."""
        return _prompt_tokens(prepared) + _expected_tokens(prepared)

    def seat(self, key: int, prepared: Prepared, *, urgent: bool) -> SlotRow:
        """Give a prepared row its slot."""
        utterance, rendered, kv = prepared.utterance, prepared.prompt, prepared.clip.kv
        # Where the language is forced, or may be any, so may the beginning.
        among = utterance.languages if utterance.language is None else ()
        row = SlotRow(
            key=key,
            budget=prepared.budget,
            temperature=utterance.temperature,
            generator=self.decoder.generator(utterance.seed) if utterance.temperature else None,
            draft=Draft(utterance.draft) if utterance.draft else None,
            forced=utterance.prefix,
            beginnings=self.prompts.beginnings(among),
            urgent=urgent,
            watched=not utterance.language,
            expected=_expected_tokens(prepared),
        )
        proposal = row.proposal()
        before = rendered.before if kv is None else rendered.before[:0]
        after = torch.cat([rendered.after, torch.tensor(proposal, dtype=torch.long)])
        embeds = self.decoder.model.embed(memory.upload(torch.cat([before, after]), self._parts.device))
        windows = prepared.clip.windows()
        given = RowInput(embeds[: len(before)], windows, embeds[len(before) :], tail=1 + len(proposal))
        self.decoder.seat(row, given, kv)
        return row

    def _encode(self, parts: Sequence[tuple[SlotRow, int]]) -> None:
        inputs = [(row.input, count) for row, count in parts if row.input is not None]
        missing = [given.missing(count) for given, count in inputs]
        windows = [window for own in missing for window in own]
        encoded = iter(self._encoder(windows) if windows else [])
        for (given, _), own in zip(inputs, missing, strict=True):
            given.add([next(encoded) for _ in own])

    @torch.inference_mode()
    def keep(self, row: SlotRow, prepared: Prepared) -> None:
        """Leave the closed windows of a session's row, whose prompt was run, for its next partial.

        Where memory is short they are not kept: that partial is slower, no more. Raises `EngineFailed`.
        """
        try:
            self._keep(row, prepared)
        except Exception as error:
            if not isinstance(failure := self._failure(error), EngineOutOfMemory):
                raise failure from error

    def _keep(self, row: SlotRow, prepared: Prepared) -> None:
        work = prepared.utterance
        self.prefix_cache.forget_unused()
        if work.session is None:
            return
        before = tuple(prepared.prompt.before.tolist())
        self._audio.keep(work, before, prepared.clip, lambda tokens: self.decoder.copy(row, tokens))

    def answer_stream(self, language: str | None) -> answer.AnswerStream:
        """Return what reads an answer while it is generated."""
        return answer.AnswerStream(self.answers, forced=language is not None)

    def figures(self) -> dict[str, Any]:
        """Return the fields of `EngineInfo` that are known once the model is loaded."""
        return {
            "dtype": self.dtype,
            "options": self._options,
            "slots": self.capacity.rows,
            "kv_budget_mb": (self.capacity.rows_bytes + self.capacity.prefix_cache_bytes) // memory.MIB,
            "kv_cache_mb": self.decoder.nbytes // memory.MIB,
            "sessions_mb": self.prefix_cache.held_bytes // memory.MIB,
            **memory.gpu_figures(self._parts.device),
        }


def aligner_bytes(plan: Plan, item_bytes: int) -> int:
    """Weights of `item_bytes` a number, and activations; 0 where there is no aligner."""
    if not plan.aligner_id:
        return 0
    directory = checkpoint.local(plan.aligner_id, aligner=True, revision=plan.aligner_revision)
    count = memory.parameters(directory) if directory is not None else _RELEASED_ALIGNER
    return count * item_bytes + memory.PASS_BYTES


def _windowed(parts: loading.Parts, make_linear: MakeLinear) -> LoadedEncoder:
    encoder = WindowedEncoder(parts.tower, make_linear)
    return LoadedEncoder(encoder, partial(WindowedAudio, encoder))


def _prompt_tokens(prepared: Prepared) -> int:
    return len(prepared.prompt.before) + prepared.clip.tokens + len(prepared.prompt.after)


def _expected_tokens(prepared: Prepared) -> int:
    work = prepared.utterance
    return min(prepared.budget, expected_tokens(len(work.audio)) + max(len(work.prefix), len(work.draft)))
