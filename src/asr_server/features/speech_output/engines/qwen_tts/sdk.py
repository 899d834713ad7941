"""The names that come from the SDK of Qwen3-TTS, imported without the libraries that are never called here.

The package is installed without its dependencies: it pins another transformers than the recogniser, and torchaudio,
sox, gradio and librosa are there for its older codec, its demonstration and for reading files. It is given samples.
Every other module of the engine takes these names from here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

# First: transformers asks the import system for what stands below for other libraries.
from transformers.modeling_utils import PreTrainedModel
from transformers.models.qwen2 import Qwen2TokenizerFast


class Unused(ModuleType):
    """Stands for a module whose names are imported while nothing is called but what is in `used`."""

    def __init__(self, name: str, **used: Any) -> None:
        super().__init__(name)
        self.__path__ = []  # so that it may have submodules
        self.__dict__.update(used)

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


@contextmanager
def replaced(stand_ins: Mapping[str, ModuleType | None]) -> Iterator[None]:
    """Meanwhile these names import as that; None is as if it were not installed."""
    stand_ins = {name: module for name, module in stand_ins.items() if name not in sys.modules}
    modules = cast(dict[str, ModuleType | None], sys.modules)
    modules.update(stand_ins)
    try:
        yield
    finally:
        for name in stand_ins:
            del modules[name]


def _mel_filters(*, sr: int, n_fft: int, n_mels: int, fmin: float, fmax: float) -> NDArray[np.float32]:
    """Return the filters (mels, bins) of `librosa.filters.mel`, on Slaney's scale, of equal area."""
    from transformers.audio_utils import mel_filter_bank

    filters: Any = mel_filter_bank(1 + n_fft // 2, n_mels, fmin, fmax, sr, norm="slaney", mel_scale="slaney")
    return filters.T.astype(np.float32)


# Modules of the codec of 25 Hz, which no released checkpoint names, and of what reads files.
_STAND_INS = (
    Unused("qwen_tts.core.tokenizer_25hz.modeling_qwen3_tts_tokenizer_v1"),
    Unused("librosa"),
    Unused("librosa.filters", mel=_mel_filters),
    Unused("soundfile"),
)
with replaced({module.__name__: module for module in _STAND_INS}):
    from qwen_tts.core.models import Qwen3TTSConfig, Qwen3TTSForConditionalGeneration
    from qwen_tts.core.models.modeling_qwen3_tts import mel_spectrogram
    from qwen_tts.core.tokenizer_12hz.configuration_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Config
    from qwen_tts.core.tokenizer_12hz.modeling_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Model

__all__ = [
    "PreTrainedModel",
    "Qwen2TokenizerFast",
    "Qwen3TTSConfig",
    "Qwen3TTSForConditionalGeneration",
    "Qwen3TTSTokenizerV2Config",
    "Qwen3TTSTokenizerV2Model",
    "mel_spectrogram",
]
