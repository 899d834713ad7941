"""Checkpoints of Qwen3-ASR and of its aligner in torch: on GPUs, and on CPUs without OpenVINO."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path

import torch
from loguru import logger
from torch import nn

from asr_server.core.setting_types import Fusion
from asr_server.engine.feature import Plan
from asr_server.engine.memory import capacity_now
from asr_server.engine.protocol import Option
from asr_server.engine.qwen_asr import loading
from asr_server.engine.qwen_asr.aligner_model import PART_S, AlignerRow, Scores
from asr_server.engine.qwen_asr.decoder import ArenaDecoder, Likeliest, likeliest
from asr_server.engine.qwen_asr.encoder import WindowedEncoder
from asr_server.engine.qwen_asr.loading import Parts
from asr_server.engine.qwen_asr.runtime import Runtime, aligner_bytes
from asr_server.engine.qwen_asr.windows import LoadedEncoder, WindowedAudio
from asr_server.engine.torch import device, linear, memory
from asr_server.engine.torch.attention import EachRow, TokenSpan
from asr_server.engine.torch.language_model import LanguageModel, Operations, Room, TorchOperations
from asr_server.engine.torch.linear import MakeLinear
from asr_server.engine.torch.passes import AttentionShape


def load(directory: Path, plan: Plan) -> Runtime:
    """Load a checked checkpoint. Raises what loading raises."""
    dtype, options = device.prepare(plan.device, plan.dtype, plan.quantize, threads=plan.cpu_threads)
    parts = loading.load(directory, device=plan.device, dtype=dtype)
    layers = linear.Layers(plan.quantize)
    encoder = _encoder(plan, directory, parts, layers)
    if not encoder.uses_tower:
        parts = replace(parts, tower=nn.Identity())  # drop its weights
    token_bytes = AttentionShape.of(parts.text.config).token_bytes(parts.dtype)
    operations, chooser, refused = _operations(plan, parts)
    text = LanguageModel(parts.text, layers, operations)
    weights = memory.addresses(parts.tower, parts.text, parts.head)
    capacity = capacity_now(plan, token_bytes, aligner_bytes(plan, dtype.itemsize), weights)
    decoder = ArenaDecoder(text, parts.head, parts.files.end_ids(), capacity, parts.files.no_speech_id, chooser)
    return Runtime(
        parts.files,
        encoder,
        decoder,
        capacity,
        (
            *options,
            *refused,
            *device.attention_options(plan.device, decoder.arena.problem),
            *encoder.options,
            *layers.options(),
        ),
        (decoder.record, decoder.record_prompts, encoder.encoder.record),
    )


def _operations(plan: Plan, parts: Parts) -> tuple[Operations, Likeliest, tuple[Option, ...]]:
    """Return the operations between matrix products, the chooser of tokens, and any option that this GPU refuses."""
    config, refused = parts.text.config, tuple[Option, ...]()
    if plan.value("fuse") == Fusion.KERNELS:
        try:
            from asr_server.engine.torch import fused  # Triton comes with torch's builds for GPUs

            problem = fused.problem(config, parts.device, parts.dtype)
        except ImportError as error:
            problem = str(error)
        if not problem:
            return fused.FusedOperations(config.rms_norm_eps), fused.likeliest, refused
        logger.warning("the server's own kernels are not used", reason=problem)
        refused = (Option("fuse", False, "", problem),)
    compiled = plan.value("fuse") == Fusion.COMPILE
    return TorchOperations(parts.text.layers[0].mlp.act_fn, config.rms_norm_eps, compiled=compiled), likeliest, refused


def _encoder(plan: Plan, directory: Path, parts: Parts, make_linear: MakeLinear) -> LoadedEncoder:
    """Return the encoder of a feature if the plan names one, otherwise the engine's own."""
    if (found := plan.encoder(directory, lambda: (parts, make_linear))) is not None:
        return found
    encoder = WindowedEncoder(parts.tower, make_linear)
    return LoadedEncoder(encoder, partial(WindowedAudio, encoder))


# Windows of audio that are encoded together: on a GPU a call costs its layers' launches, however few its windows.
_WINDOWS = {"cpu": 1, "cuda": 16}


class TorchAligner:
    """Implements `AlignerModel`, with one pass for all rows."""

    def __init__(self, parts: Parts) -> None:
        self.encoder = WindowedEncoder(parts.tower)
        self.slots: int = parts.head.out_features
        self._language_model, self._head = LanguageModel(parts.text), parts.head
        self._shape = AttentionShape.of(parts.text.config)
        self._device = parts.device

    def report_to(self, on_progress: Callable[[], None]) -> None:
        """See `AlignerModel`. Only on a CPU: a GPU's passes are queued in milliseconds."""
        if self._device.type == "cpu":
            self.encoder.on_layer = self._language_model.on_layer = on_progress

    def scores(self, rows: Sequence[AlignerRow], stamp: int) -> Iterator[list[Scores] | None]:
        """See `AlignerModel`. A part is as many windows of audio, or layers, as take about 0.2 s."""
        began_s = time.perf_counter()
        for found in self._by_layer(rows, stamp):
            if self._device.type == "cuda":
                # Queued work has taken no time yet, and decoding rows would have to wait for it.
                torch.cuda.current_stream(self._device).synchronize()
            if found is not None or time.perf_counter() - began_s >= PART_S:
                yield found
                began_s = time.perf_counter()

    # A decorator, since `with` in a generator would also be in force in the caller, between the parts.
    @torch.inference_mode()
    def _by_layer(self, rows: Sequence[AlignerRow], stamp: int) -> Iterator[list[Scores] | None]:
        """Yield None after some windows of audio and after each layer, then the scores."""
        inputs, most = list[torch.Tensor](), _WINDOWS[self._device.type]
        for row in rows:
            windows, encoded = self.encoder.windows(row.mel), list[torch.Tensor]()
            for begin in range(0, len(windows), most):
                encoded += self.encoder(windows[begin : begin + most])
                yield None
            inputs.append(torch.cat([self._embed(row.before), *encoded, self._embed(row.after)]))
        states = torch.cat(inputs)
        for reached in self._language_model.by_layer(states, _WholeRows(self._shape, inputs)):
            states = reached
            yield None
        stamps = [
            hidden[[len(hidden) - len(row.after) + at for at, token in enumerate(row.after) if token == stamp]]
            for row, hidden in zip(rows, states.split([len(given) for given in inputs]), strict=True)
        ]
        logits = self._head(torch.cat(stamps)).float().cpu()
        yield [own.numpy() for own in logits.split([len(one) for one in stamps])]

    def _embed(self, ids: Sequence[int]) -> torch.Tensor:
        return self._language_model.embed(torch.tensor(ids, dtype=torch.long, device=self._device))


def load_aligner(directory: Path, plan: Plan) -> TorchAligner:
    """Load a checked aligner."""
    number_format, _ = device.prepare(plan.device, plan.dtype)
    return TorchAligner(loading.load(directory, device=plan.device, dtype=number_format))


class _WholeRows:
    """Rows that run in a single pass and are not kept. Implements `Attention` of the language model.

    `inputs`: the embeddings (n, d) of each row.
    """

    def __init__(self, shape: AttentionShape, inputs: Sequence[torch.Tensor]) -> None:
        counts, like = [len(given) for given in inputs], inputs[0]
        self.positions = torch.cat([torch.arange(count, device=like.device) for count in counts])
        # All layers share this room: a layer's keys and values are read before the next layer's are written.
        keys, values = like.new_empty(2, sum(counts), shape.kv_heads, shape.dim)
        self._room = Room(keys, values, torch.arange(sum(counts), device=like.device))
        begins = accumulate(counts, initial=0)
        self._attention = EachRow([TokenSpan(begin, 0, count) for count, begin in zip(counts, begins, strict=False)])

    def room(self, layer: int) -> Room:
        return self._room

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """See `Attention`."""
        keys, values, _ = self._room
        return self._attention(q, keys, values)
