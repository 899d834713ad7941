"""The choice of a Qwen3-TTS model, and the device it runs on."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from asr_server.engine.feature import SharedModel

_NEEDED = ("torch", "qwen_asr", "qwen_tts")


def missing() -> str:
    """Return why this installation cannot run Qwen3-TTS; "" if it can."""
    try:
        found = all(find_spec(name) is not None for name in _NEEDED)
    except ValueError:  # of a module that stands for another
        found = False
    return "" if found else "Qwen3-TTS needs its SDK: make speech, or pip install --no-deps qwen-tts==0.1.1"


@dataclass(frozen=True, slots=True)
class SpeechModel(SharedModel):
    """A model of Qwen3-TTS, and how it runs. `device`, `dtype`, `quantize`, `cpu_threads` and `cuda_graphs` are as in
    the plan."""

    model_id: str  # a directory or a hub id
    revision: str = ""  # of a hub id, "" for any
    setting: str = "SPEECH"  # the variable that names it, for messages
    device: str = "cpu"
    dtype: str = "float32"
    slots: int = 4  # the most sentences that share a step
    kv_budget_mb: int = 0  # for keys and values, 0 for a share of what is free
    quantize: str = ""
    cpu_threads: int = 0
    cuda_graphs: bool = False
