"""Qwen's SDK, with which tests compare and the bundled checkpoints are trained. The server does not need it.

It is installed without the packages that it reads files with: it is given samples here.
"""

from __future__ import annotations

import importlib
import sys
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

# First: transformers asks the import system for librosa when it is imported, and the SDK takes it as it is.
from transformers import AutoConfig, AutoModel, AutoProcessor  # noqa: F401
from transformers.cache_utils import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.qwen2 import Qwen2TokenizerFast
from transformers.models.whisper import WhisperFeatureExtractor

with ThreadPoolExecutor(1) as loader:  # it changes the arithmetic of the thread that loads it; see `aligned_words`
    loader.submit(importlib.import_module, "nagisa").result()
sys.modules.setdefault("librosa", ModuleType("librosa"))
from qwen_asr.core.transformers_backend import (  # noqa: E402
    Qwen3ASRConfig,
    Qwen3ASRForConditionalGeneration,
    Qwen3ASRProcessor,
)
from qwen_asr.inference.qwen3_forced_aligner import Qwen3ForceAlignProcessor  # noqa: E402
from qwen_asr.inference.utils import parse_asr_output  # noqa: E402

del sys.modules["librosa"]

__all__ = [
    "ALL_ATTENTION_FUNCTIONS",
    "Cache",
    "Qwen2TokenizerFast",
    "Qwen3ASRConfig",
    "Qwen3ASRForConditionalGeneration",
    "Qwen3ASRProcessor",
    "Qwen3ForceAlignProcessor",
    "WhisperFeatureExtractor",
    "parse_asr_output",
]
