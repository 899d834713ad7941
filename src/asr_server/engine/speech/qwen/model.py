"""Which model of Qwen3-TTS, and on what it runs."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

_NEEDED = ("torch", "qwen_asr", "qwen_tts")


def missing() -> str:
    """Why this installation cannot run Qwen3-TTS; "" if it can."""
    try:
        found = all(find_spec(name) is not None for name in _NEEDED)
    except ValueError:  # of a module that stands for another
        found = False
    return "" if found else "Qwen3-TTS needs its SDK: make speech, or pip install --no-deps qwen-tts==0.1.1"


@dataclass(frozen=True, slots=True)
class SpeechModel:
    """`model_id`: a directory or a hub id, `revision` of a hub id ("" for any). `setting`: the variable that names it,
    for messages. `device`, `dtype`, `quantize`, `cpu_threads`, `cuda_graphs`: as in the plan. `slots`: the most
    sentences that share a step. `kv_budget_mb`: for keys and values, 0 for a share of what is free; `shares`: models
    that share the memory.
    """

    model_id: str
    revision: str = ""
    setting: str = "SPEECH"
    device: str = "cpu"
    dtype: str = "float32"
    slots: int = 4
    kv_budget_mb: int = 0
    shares: int = 1
    quantize: str = ""
    cpu_threads: int = 0
    cuda_graphs: bool = False
