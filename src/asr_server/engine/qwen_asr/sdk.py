"""The names of models that come from the SDK and from transformers, without the libraries that are never called here.

Their imports pull in a Japanese tokenizer with its model, scikit-learn, pandas and SciPy: half of the time to the first
word of a fresh process, and 300 MB that stay. The SDK's functions for text are in `sdk_text`.
"""

from __future__ import annotations

import sys

from asr_server.engine.stand_ins import Later, replaced

# For its losses. transformers looks for these two when it is imported, and goes without what it does not find; where
# somebody imported it before, it has found them, and they must be there.
with replaced(dict.fromkeys(("sklearn", "scipy") if "transformers" not in sys.modules else ())):
    from transformers.cache_utils import Cache
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
    from transformers.models.qwen2 import Qwen2TokenizerFast

    # nagisa splits Japanese for the aligner. With the others the SDK reads files; it is given samples here, and these
    # two are not even installed.
    with replaced({name: Later(name) for name in ("nagisa", "librosa", "soundfile")}):
        from qwen_asr.core.transformers_backend import (
            Qwen3ASRConfig,
            Qwen3ASRForConditionalGeneration,
            Qwen3ASRProcessor,
        )
        from transformers.models.whisper import WhisperFeatureExtractor

__all__ = [
    "ALL_ATTENTION_FUNCTIONS",
    "Cache",
    "PreTrainedModel",
    "Qwen2TokenizerFast",
    "Qwen3ASRConfig",
    "Qwen3ASRForConditionalGeneration",
    "Qwen3ASRProcessor",
    "WhisperFeatureExtractor",
]
