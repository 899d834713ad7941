"""Linear layers by the format of their weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

# (..., in) to (..., out).
Linear = Callable[[torch.Tensor], torch.Tensor]
# Made from a weight (out, in) and a bias (out,) or None.
MakeLinear = Callable[[torch.Tensor, torch.Tensor | None], Linear]


def plain(weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
    """In the format of the weight."""
    return partial(F.linear, weight=weight, bias=bias)


def stacked(*parts: nn.Linear) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight and bias of layers of one input as those of a single one."""
    weight = torch.cat([part.weight for part in parts])
    return weight, torch.cat([part.bias for part in parts]) if parts[0].bias is not None else None
