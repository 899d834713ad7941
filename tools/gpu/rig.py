"""Engines on the device that is measured, and clips for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from asr_server import feature_list
from asr_server.core import settings
from asr_server.engine import capabilities
from asr_server.engine.feature import Plan
from asr_server.engine.qwen_asr.engine import QwenEngine
from E2Etest.drive import recordings
from tools.checkpoints.recogniser import random_checkpoint
from tools.gpu.carry import CLIPS


@dataclass(frozen=True, slots=True)
class Rig:
    """`shape`: of the random weights that speed is measured with, or "demo"."""

    device: str
    shape: str
    held: dict[str, Any] = field(default_factory=dict)  # what a part leaves for the next ones

    @property
    def model_id(self) -> str:
        """The checkpoint for speed: it says nothing sensible, and costs what a released one does."""
        return "demo" if self.shape == "demo" else str(random_checkpoint(self.shape, self.device))

    @property
    def sixteen_bits(self) -> tuple[str, ...]:
        """The shorter formats that the device can be asked for."""
        return ("bfloat16", "float16") if self.device != "cpu" else ("bfloat16",)

    def engine(self, model_id: str, *, max_batch: int = 8, graphs: bool | str = "auto", **chosen: Any) -> QwenEngine:
        """Not loaded yet. `graphs`: USE_CUDA_GRAPHS; `chosen`: other settings. Raises `PlanError`."""
        loaded = settings.load(
            _env_file=None,
            model_id=model_id,
            device=self.device,
            max_batch=max_batch,
            use_cuda_graphs=graphs,
            runtime="torch",  # what a GPU has, when the code is tried on a CPU
            preload=False,
            **chosen,
        )
        return QwenEngine(feature_list.resolve(loaded, capabilities.probe()))

    def aligner_plan(self, aligner_id: str) -> Plan:
        """Return a plan with an aligner next to the engine."""
        chosen = settings.load(_env_file=None, model_id="demo", device=self.device, forced_aligner_id=aligner_id)
        return feature_list.resolve(chosen, capabilities.probe())

    def synchronize(self) -> None:
        """Wait until the device has done what it was given."""
        if self.device != "cpu":
            torch.cuda.synchronize(self.device)


CLIPS_COUNT = 24


def clips(count: int) -> list[np.ndarray]:
    """Speech of at most 8 s that the demonstration model knows, in voices that it was not trained on: float32 (n,)."""
    if not CLIPS.is_file():
        return decoded_clips(count)
    with np.load(CLIPS) as carried:
        return [clip.astype(np.float32) / 32768 for clip in list(carried.values())[:count]]


def decoded_clips(count: int) -> list[np.ndarray]:
    """Return them from their files."""
    short = [clip for clip in recordings.clips() if clip.language and clip.seconds <= 8]
    return [recordings.waveform(clip.path) for clip in short[:count]]
