"""Progress reports from inside a forward pass, which on a slow CPU may take longer than `ENGINE_HANG_S`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


def report_to(on_progress: Callable[[], None], tower: Any, text: Any) -> None:
    """Call `on_progress` at each chunk of the convolutions and each layer of the audio tower and of the language model.

    On a CPU only: on a GPU a pass is queued in milliseconds, and each call would be a share of them.
    """
    if tower.conv2d1.weight.device.type != "cpu":
        return

    def tick(*_: object) -> None:  # what a hook returns takes the place of the layer's input
        on_progress()

    # Of the tower's layers a part each: `encoder` drives their parts, not them.
    modules: list[nn.Module] = [tower.conv2d1, *(layer.fc1 for layer in tower.layers), *text.layers]
    for module in modules:
        module.register_forward_pre_hook(tick)
