"""What comes from the SDK and from transformers, imported without what they load and nothing here ever calls.

Their imports pull in a Japanese tokenizer with its model, scikit-learn, pandas and SciPy: half of the time to the first
word of a fresh process, and 300 MB that stay. Every other module of the engine takes these names from here.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, cast


class _Later(ModuleType):
    """Stands for a module until someone wants something of it."""

    def __getattr__(self, name: str) -> Any:
        # Whoever walks over all modules asks for dunders, and that is no use of this one.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


class _Unused(ModuleType):
    """Stands for a module of which names are imported and nothing is called."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []  # so that it may have submodules

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


@contextmanager
def _replaced(stand_ins: dict[str, ModuleType | None]) -> Iterator[None]:
    """Meanwhile these names import as that; None is as if it were not installed."""
    stand_ins = {name: module for name, module in stand_ins.items() if name not in sys.modules}
    modules = cast(dict[str, ModuleType | None], sys.modules)
    modules.update(stand_ins)
    try:
        yield
    finally:
        for name in stand_ins:
            del modules[name]


# For its losses. transformers looks for these two when it is imported, and goes without what it does not find; where
# somebody imported it before, it has found them, and they must be there.
with _replaced(dict.fromkeys(("sklearn", "scipy") if "transformers" not in sys.modules else ())):
    from transformers.cache_utils import Cache
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.qwen2 import Qwen2TokenizerFast
    from transformers.models.qwen2.tokenization_qwen2 import bytes_to_unicode

    # nagisa splits Japanese for the aligner. With the others the SDK reads files; it is given samples here, and these
    # two are not even installed.
    with _replaced({name: _Later(name) for name in ("nagisa", "librosa", "soundfile")}):
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
with _replaced({name: _Unused(name) for name in _FOR_SOYNLP}), warnings.catch_warnings():
    warnings.simplefilter("ignore", SyntaxWarning)  # of its sources, when they are compiled
    importlib.import_module("soynlp.tokenizer")  # the SDK imports it for the first Korean text

__all__ = [
    "ALL_ATTENTION_FUNCTIONS",
    "Cache",
    "Qwen2TokenizerFast",
    "Qwen3ASRConfig",
    "Qwen3ASRForConditionalGeneration",
    "Qwen3ASRProcessor",
    "Qwen3ForceAlignProcessor",
    "WhisperFeatureExtractor",
    "bytes_to_unicode",
    "parse_asr_output",
]
