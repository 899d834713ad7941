"""A checkpoint of Qwen3-ASR in compiled graphs, for CPUs. Imports torch only for a feature's encoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from asr_server.core.setting_types import Dtype, Quantization
from asr_server.engine.feature import Plan
from asr_server.engine.memory import capacity_now
from asr_server.engine.openvino import library
from asr_server.engine.openvino.compiled_text import PAGE, CompiledText
from asr_server.engine.openvino.encoder_graph import EncoderWeights
from asr_server.engine.openvino.library import Matrices, NumberFormats
from asr_server.engine.openvino.text_graph import TextWeights
from asr_server.engine.qwen_asr import files
from asr_server.engine.qwen_asr.compiled_decoder import CompiledDecoder
from asr_server.engine.qwen_asr.compiled_encoder import CompiledEncoder
from asr_server.engine.qwen_asr.files import CheckpointFiles
from asr_server.engine.qwen_asr.runtime import Runtime, aligner_bytes
from asr_server.engine.qwen_asr.windows import LoadedEncoder, WindowedAudio

_BITS = {"": 0, Quantization.INT8: 8, Quantization.INT4: 4}
# Bytes of one number in the aligner's weights.
_EIGHT_BITS, _FLOAT32 = 1, 4


def load(directory: Path, plan: Plan, on_progress: Callable[[float], None]) -> Runtime:
    """Load a checked checkpoint. `on_progress` is called while graphs are made, with the share of the weights that is
    converted. Raises what loading raises."""
    found = files.read(directory)
    formats = formats_of(plan)
    other = _of_feature(plan, directory)
    text, encoder, made = graphs(found, formats, plan.state_dir, on_progress, with_encoder=other is None)
    loaded = other if encoder is None else LoadedEncoder(encoder, partial(WindowedAudio, encoder))
    assert loaded is not None
    item_bytes = _EIGHT_BITS if formats.bits else _FLOAT32
    capacity = capacity_now(plan, text.page_bytes // PAGE, aligner_bytes(plan, item_bytes), text.mapped)
    capacity = replace(capacity, rows_bytes=capacity.rows_bytes // text.page_bytes * text.page_bytes)
    decoder = CompiledDecoder(text, found.end_ids(), capacity, found.no_speech_id)
    return Runtime(found, loaded, decoder, capacity, (*loaded.options, *made.options), release=made.kept.release)


def formats_of(plan: Plan) -> NumberFormats:
    return NumberFormats(_BITS[plan.quantize], plan.dtype == Dtype.BFLOAT16, plan.cpu_threads)


def graphs(
    found: CheckpointFiles,
    formats: NumberFormats,
    state_dir: Path | None,
    on_progress: Callable[[float], None],
    *,
    with_encoder: bool = True,
) -> tuple[CompiledText, CompiledEncoder | None, Matrices]:
    """Compile the language model and the encoder of a checkpoint; see `library.matrices`. Raises `ModelUnavailable`,
    `EngineOutOfMemory`."""
    with files.failures(found.directory):
        weights = found.weights()
        audio = found.thinker["audio_config"]
        text = TextWeights.of(found.thinker["text_config"], weights)
        encoder = EncoderWeights.of(audio, weights)
        parts = {**text.matrices(), **(encoder.matrices() if with_encoder else {})}
        few = text.layer_matrices
        made = library.matrices(weights, parts, formats, found.directory, state_dir, on_progress, few=few)
        on_progress(1.0)
        compiled = CompiledText(text, made.matrix, formats)
        on_progress(1.0)
        windows = int(audio["n_window"]), int(audio["n_window_infer"])
        heard = CompiledEncoder(*windows, encoder, made.matrix, formats) if with_encoder else None
        return compiled, heard, made


def _of_feature(plan: Plan, directory: Path) -> LoadedEncoder | None:
    """Return the encoder of a feature, if the plan names one. It runs in torch, in float32."""

    def load() -> Any:
        from asr_server.engine.qwen_asr import loading
        from asr_server.engine.torch import device, linear

        dtype, _ = device.prepare(plan.device, Dtype.FLOAT32, threads=plan.cpu_threads)
        parts = loading.load(directory, device=plan.device, dtype=dtype)
        return parts, linear.plain

    return plan.encoder(directory, load)
