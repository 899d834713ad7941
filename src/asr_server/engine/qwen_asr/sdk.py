"""The names that come from the SDK and from transformers, imported without the libraries that are never called here.

Their imports pull in a Japanese tokenizer with its model, scikit-learn, pandas and SciPy: half of the time to the first
word of a fresh process, and 300 MB that stay. Every other module of the engine takes these names from here.
"""

from __future__ import annotations

import importlib
import sys
import warnings

from asr_server.engine.stand_ins import Later, Unused, replaced

# For its losses. transformers looks for these two when it is imported, and goes without what it does not find; where
# somebody imported it before, it has found them, and they must be there.
with replaced(dict.fromkeys(("sklearn", "scipy") if "transformers" not in sys.modules else ())):
    from transformers.cache_utils import Cache
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
    from transformers.models.qwen2 import Qwen2TokenizerFast
    from transformers.models.qwen2.tokenization_qwen2 import bytes_to_unicode

    # nagisa splits Japanese for the aligner. With the others the SDK reads files; it is given samples here, and these
    # two are not even installed.
    with replaced({name: Later(name) for name in ("nagisa", "librosa", "soundfile")}):
        from qwen_asr import parse_asr_output
        from qwen_asr.core.transformers_backend import (
            Qwen3ASRConfig,
            Qwen3ASRForConditionalGeneration,
            Qwen3ASRProcessor,
        )
        from qwen_asr.inference.qwen3_forced_aligner import Qwen3ForceAlignProcessor
        from transformers.models.whisper import WhisperFeatureExtractor

# soynlp splits Korean for the aligner. Its other parts compare words with scikit-learn and SciPy.
_FOR_SOYNLP = (
    "psutil",
    "scipy",
    "scipy.sparse",
    "sklearn",
    "sklearn.metrics",
    "sklearn.utils",
    "sklearn.utils.extmath",
)
with replaced({name: Unused(name) for name in _FOR_SOYNLP}), warnings.catch_warnings():
    warnings.simplefilter("ignore", SyntaxWarning)  # of its sources, when they are compiled
    importlib.import_module("soynlp.tokenizer")  # the SDK imports it for the first Korean text

__all__ = [
    "ALL_ATTENTION_FUNCTIONS",
    "Cache",
    "PreTrainedModel",
    "Qwen2TokenizerFast",
    "Qwen3ASRConfig",
    "Qwen3ASRForConditionalGeneration",
    "Qwen3ASRProcessor",
    "Qwen3ForceAlignProcessor",
    "WhisperFeatureExtractor",
    "bytes_to_unicode",
    "parse_asr_output",
]
