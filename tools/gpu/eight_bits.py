"""Linear layers in 8 bits on this device: the words, the memory, and the time of a step, beside 16 bits."""

from __future__ import annotations

from asr_server.engine.plan import PlanError
from tools.gpu import agreement, speed
from tools.gpu.rig import Rig, clips

_CLIPS = 24
_ROWS = (1, 8)
# More would be words lost for memory.
MOST_DIFFERENT_WORDS = 0.03


def measure(rig: Rig) -> dict[str, object]:
    """Each format, or why this device does not have it."""
    spoken = clips(_CLIPS)
    exact = agreement.texts(rig, 1, spoken, quantize="none")
    found: dict[str, object] = {"none": _costs(rig, "none")}
    for quantize in ("int8", "fp8"):
        try:
            compared = {
                f"{rows}_rows": agreement.compare(agreement.texts(rig, rows, spoken, quantize=quantize), exact)
                for rows in _ROWS
            }
        except PlanError as error:
            found[quantize] = {"refused": str(error)}
            continue
        found[quantize] = {**compared, **_costs(rig, quantize)}
        assert all(rows["different_words"] <= MOST_DIFFERENT_WORDS for rows in compared.values()), found
    return found


def _costs(rig: Rig, quantize: str) -> dict[str, object]:
    """Return the costs of the shape that speed is measured with, without recorded steps and with them where the plan
    has them; what loading has told says if the device refused."""
    found: dict[str, object] = {}
    for graphs in (False, "auto"):
        engine = rig.engine(rig.model_id, graphs=graphs, quantize=quantize)
        engine.load()
        steps = {f"step_ms_{rows}_rows": round(speed.step_ms(rig, engine, rows), 3) for rows in _ROWS}
        told = {option.name: option.reason for option in engine.info.options}
        found["recorded" if graphs else "not_recorded"] = {
            "told": {name: told[name] for name in ("quantize", "use_cuda_graphs") if name in told},
            "allocated_mb": engine.info.gpu_allocated_mb,
            **steps,
        }
        engine.unload()
    return found
