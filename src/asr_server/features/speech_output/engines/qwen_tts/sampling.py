"""The choice of codes from logits: the likeliest, or one drawn, in the order of transformers' processors.

Chance comes as numbers in [0, 1) made beforehand, one for each code. So a row draws the same in every company, and
again when a pass is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Sampling:
    """The way in which codes are drawn."""

    temperature: float = 0.9  # 0 is greedy
    top_k: int = 50  # 0 is all
    top_p: float = 1.0
    repetition_penalty: float = 1.0  # of codes that the row has had

    def draw(self, logits: torch.Tensor, chances: torch.Tensor) -> torch.Tensor:
        """Logits (n, codes) and chances (n,) to codes (n,)."""
        if self.temperature == 0:
            return logits.argmax(-1)
        count = min(self.top_k or logits.shape[-1], logits.shape[-1])
        best, codes = (logits / self.temperature).topk(count)
        weights = best.softmax(-1)
        sums = weights.cumsum(-1)
        # The fewest that have `top_p` together; the first always.
        weights = weights.masked_fill(sums - weights >= self.top_p, 0.0)
        sums = weights.cumsum(-1)
        places = (sums <= chances[:, None] * sums[:, -1:]).sum(-1, keepdim=True).clamp_(max=count - 1)
        return codes.gather(-1, places).squeeze(-1)

    def penalized(self, logits: torch.Tensor, had: torch.Tensor) -> torch.Tensor:
        """Logits (n, codes), those of codes that were `had` (n, codes) made less likely."""
        lowered = torch.where(logits < 0, logits * self.repetition_penalty, logits / self.repetition_penalty)
        return torch.where(had, lowered, logits)


@dataclass(frozen=True, slots=True)
class SamplingPair:
    """The sampling of a frame's codes."""

    first: Sampling  # of the first code
    others: Sampling  # of the others

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> SamplingPair:
        """Read a checkpoint's `generation_config.json`, with the SDK's defaults."""

        def sampling(prefix: str, do_sample: str, penalty: float) -> Sampling:
            greedy = not config.get(do_sample, True)
            return Sampling(
                temperature=0.0 if greedy else float(config.get(f"{prefix}temperature", 0.9)),
                top_k=int(config.get(f"{prefix}top_k", 50)),
                top_p=float(config.get(f"{prefix}top_p", 1.0)),
                repetition_penalty=penalty,
            )

        penalty = float(config.get("repetition_penalty", 1.05))
        return cls(sampling("", "do_sample", penalty), sampling("subtalker_", "subtalker_dosample", 1.0))
