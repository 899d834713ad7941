"""The memory that a model or an aligner will take, estimated before it is loaded. Asks no hub and reads no weights."""

from __future__ import annotations

from pathlib import Path

from asr_server.engine.plan import Plan
from asr_server.engine.qwen_asr import checkpoint

# Of the released aligner, for one that is not downloaded yet: an encoder of 24 x 1024, a language model of 28 x 1024
# with 151,936 words, a head of 5,000 slots.
_RELEASED_PARAMETERS = 920_000_000
# Activations of a pass by its shapes: 8,192 tokens in the widest layer of the language model take 150 MiB in 16 bits,
# the first convolution of 30 s of audio 180 MiB. Not measured on a GPU.
PASS_BYTES = 512 * 1024 * 1024


def aligner_bytes(plan: Plan, item_bytes: int) -> int:
    """Weights of `item_bytes` a number, and activations; 0 where there is no aligner."""
    if not plan.aligner_id:
        return 0
    directory = checkpoint.local(plan.aligner_id, aligner=True, revision=plan.aligner_revision)
    count = parameters(directory) if directory is not None else _RELEASED_PARAMETERS
    return count * item_bytes + PASS_BYTES


def fits(plan: Plan) -> bool:
    """True if the model of the plan seems to fit into the free memory, and where its size is not known."""
    directory = checkpoint.local(plan.model_id, revision=plan.model_revision)
    if directory is None:
        return True
    import torch

    from asr_server.engine.torch import memory

    # In 8 bits the layers are there twice, which is as much as once in 16 bits.
    item_bytes = 4 if plan.dtype == "float32" and not plan.quantize else 2
    return memory.free_bytes(torch.device(plan.device)) >= parameters(directory) * item_bytes + PASS_BYTES


def parameters(directory: Path) -> int:
    """Count the parameters by the headers of the weight files: their formats may differ from the one that is loaded."""
    from safetensors import safe_open

    total = 0
    for file in directory.glob("*.safetensors"):
        with safe_open(file, framework="numpy") as header:
            for name in header.keys():  # noqa: SIM118 - it is no dict
                size = 1
                for length in header.get_slice(name).get_shape():
                    size *= length
                total += size
    return total
