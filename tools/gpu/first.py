"""The first things to know of a card and a torch: what the engine can use on them, and how long a load takes."""

from __future__ import annotations

import time
from types import SimpleNamespace

import torch

from asr_server.engine.torch.passes import AttentionShape, variable_length_problem
from tools.checkpoints.recogniser import SHAPES, released_config
from tools.gpu.rig import Rig


def trial(rig: Rig) -> dict[str, object]:
    """Why attention over rows of any lengths, recorded with an empty row, or the server's kernels cannot be used; an
    empty text if they can."""
    device = torch.device(rig.device)
    dtype = torch.float32 if rig.device == "cpu" else torch.bfloat16
    text = released_config(SHAPES["1.7b"])["thinker_config"]["text_config"]
    config = SimpleNamespace(**text, rms_norm_eps=1e-6, hidden_act="silu")
    began_s = time.perf_counter()
    try:
        from asr_server.engine.torch import fused

        kernels = fused.problem(config, device, dtype) or ""
    except ImportError as error:
        kernels = str(error)
    return {
        "variable_length": variable_length_problem(AttentionShape.of(config), device, dtype),
        "fused_kernels": kernels,
        "took_s": round(time.perf_counter() - began_s, 1),
    }


def load(rig: Rig) -> dict[str, object]:
    """Seconds until random weights are on the disk, and of a load with its first and recorded passes."""
    began_s = time.perf_counter()
    engine = rig.engine(rig.model_id)
    made_s = time.perf_counter()
    engine.load()
    info, loaded_s = engine.info, time.perf_counter()
    engine.unload()
    return {
        "weights_s": round(made_s - began_s, 1),
        "load_s": round(loaded_s - made_s, 2),
        "dtype": info.dtype,
        "slots": info.slots,
        "decided": {option.name: f"{option.value}: {option.reason}" for option in info.options},
    }
