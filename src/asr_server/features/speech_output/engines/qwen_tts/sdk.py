"""Imports the SDK of Qwen3-TTS without the libraries that it never calls here, and loads checkpoints with it.

The package is installed without its dependencies: it pins another version of transformers than the recogniser, and
needs torchaudio, sox, gradio, librosa and soundfile only for its older codec, its demo and files, none of them used.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

# Imported first: transformers asks the import system about the libraries that are replaced below.
from transformers import AutoFeatureExtractor
from transformers.modeling_utils import PreTrainedModel
from transformers.models.qwen2 import Qwen2TokenizerFast

from asr_server.core.errors import ModelUnavailable
from asr_server.engine.qwen_asr.files import failures
from asr_server.features.speech_output.engines.qwen_tts.checkpoint import CODEC, SpeechCheckpoint


class _Unused(ModuleType):
    """A module whose names are imported and never called, except for `used`."""

    def __init__(self, name: str, **used: Any) -> None:
        super().__init__(name)
        self.__path__: list[str] = []  # so that it may have submodules
        self.__dict__.update(used)

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def _mel_filters(*, sr: int, n_fft: int, n_mels: int, fmin: float, fmax: float) -> NDArray[np.float32]:
    """Return the filters (mels, bins) of `librosa.filters.mel`: on Slaney's scale, of equal area."""
    from transformers.audio_utils import mel_filter_bank

    filters: Any = mel_filter_bank(1 + n_fft // 2, n_mels, fmin, fmax, sr, norm="slaney", mel_scale="slaney")
    return filters.T.astype(np.float32)


_REPLACED = {
    module.__name__: module
    for module in (
        _Unused("qwen_tts.core.tokenizer_25hz.modeling_qwen3_tts_tokenizer_v1"),
        _Unused("librosa"),
        _Unused("librosa.filters", mel=_mel_filters),
        _Unused("soundfile"),
    )
    if module.__name__ not in sys.modules
}
sys.modules.update(_REPLACED)
try:
    from qwen_tts.core.models import Qwen3TTSConfig, Qwen3TTSForConditionalGeneration
    from qwen_tts.core.tokenizer_12hz.configuration_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Config
    from qwen_tts.core.tokenizer_12hz.modeling_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Model
    from qwen_tts.inference.qwen3_tts_model import Qwen3TTSModel
    from qwen_tts.inference.qwen3_tts_tokenizer import Qwen3TTSTokenizer
finally:
    for name in _REPLACED:
        del sys.modules[name]

__all__ = [
    "Qwen3TTSConfig",
    "Qwen3TTSForConditionalGeneration",
    "Qwen3TTSModel",
    "Qwen3TTSTokenizerV2Config",
    "Qwen3TTSTokenizerV2Model",
    "load",
]


def load(found: SpeechCheckpoint, *, device: str, dtype: torch.dtype) -> Qwen3TTSModel:
    """Load a checked checkpoint onto `device`, which was prepared, in `dtype`.

    The codec stays in float32: the rounding of bfloat16 is 48 dB below the signal, which can be heard. Raises
    `ModelUnavailable` if files are damaged or weights are missing, and `EngineOutOfMemory`.
    """
    directory = found.directory
    with failures(directory):
        # The SDK also asks for the fix of the regular expression.
        tokenizer = Qwen2TokenizerFast.from_pretrained(directory, fix_mistral_regex=True, local_files_only=True)
        model = _weights(Qwen3TTSForConditionalGeneration, directory, dtype).to(device)
        codec = Qwen3TTSTokenizer()
        codec.model = _weights(Qwen3TTSTokenizerV2Model, directory / CODEC, torch.float32).to(device)
        codec.feature_extractor = AutoFeatureExtractor.from_pretrained(directory / CODEC, local_files_only=True)
        codec.config, codec.device = codec.model.config, codec.model.device
        model.load_speech_tokenizer(codec)
        # Without it transformers warns about each sentence.
        model.talker.generation_config.pad_token_id = model.config.talker_config.codec_pad_id
    return Qwen3TTSModel(model, tokenizer, found.generation)


def _weights(kind: Any, directory: Path, dtype: torch.dtype) -> Any:
    # The SDK's own `from_pretrained` would ask the hub for names.
    model, report = PreTrainedModel.from_pretrained.__func__(
        kind, directory, dtype=dtype, output_loading_info=True, local_files_only=True
    )
    if missing := sorted(report["missing_keys"]):
        # transformers fills missing weights with random numbers and only warns: the model would speak noise.
        raise ModelUnavailable(
            f"The checkpoint in {directory.name} lacks {len(missing)} weights, such as {missing[0]}."
        )
    return model.eval().requires_grad_(False)
