"""The SDK's functions for text, from its files: importing the package itself imports torch and transformers."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

from asr_server.engine.stand_ins import Later, Unused, replaced

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
# The files import these for their models. What they take from them here decorates a method that is not called.
_FOR_MODELS = ("torch", "transformers", "qwen_asr", "qwen_asr.core", "qwen_asr.core.transformers_backend")


def _folder() -> ModuleType:
    """Return a package of the SDK's folder for inference, under a name that is not the SDK's."""
    spec = importlib.util.find_spec("qwen_asr")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'qwen_asr'", name="qwen_asr")
    package = ModuleType("qwen_asr_text")
    package.__path__ = [str(Path(spec.origin).parent / "inference")]
    return package


def _undecorated(*_: Any) -> Any:
    return lambda function: function


# nagisa splits Japanese for the aligner. With the others the SDK reads files; it is given samples here, and these two
# are not even installed.
_unneeded: dict[str, ModuleType] = {name: Later(name) for name in ("nagisa", "librosa", "soundfile")}
sys.modules.setdefault("qwen_asr_text", _folder())
_unneeded |= {name: Unused(name, inference_mode=_undecorated, no_grad=_undecorated) for name in _FOR_MODELS}
with replaced(_unneeded):
    parse_asr_output = importlib.import_module("qwen_asr_text.utils").parse_asr_output
    Qwen3ForceAlignProcessor = importlib.import_module("qwen_asr_text.qwen3_forced_aligner").Qwen3ForceAlignProcessor

with replaced({name: Unused(name) for name in _FOR_SOYNLP}), warnings.catch_warnings():
    warnings.simplefilter("ignore", SyntaxWarning)  # of its sources, when they are compiled
    importlib.import_module("soynlp.tokenizer")  # the SDK imports it for the first Korean text

__all__ = ["Qwen3ForceAlignProcessor", "parse_asr_output"]
