"""From hidden states to tokens: the likeliest or a drawn one, and how likely it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch

# Logits are made for this many states at a time: of a vocabulary of 151,936 words, 37 MiB in float32.
_STATES = 64
# Sampling is greedy long before this; by less than that, logits cannot be divided.
_COLDEST = 1e-4


@dataclass(frozen=True, slots=True)
class Draw:
    """The state at `place` is sampled, at `temperature` above 0."""

    place: int
    temperature: float
    generator: torch.Generator | None


@dataclass(frozen=True, slots=True)
class Choice:
    """A token id, its natural log-probability, and that of the id that was watched."""

    token: int
    logprob: float
    watched: float


def choose(
    head: Callable[[torch.Tensor], torch.Tensor],
    states: torch.Tensor,
    watched: int,
    draws: Sequence[Draw] = (),
    forced: Mapping[int, int] = MappingProxyType({}),
) -> torch.Tensor:
    """What follows each of the hidden states (n, d): the likeliest token but for `draws` and those `forced` at places.

    On the device, (n, 3) as `choices` reads it.
    """
    found = []
    for begin in range(0, len(states), _STATES):
        logits = head(states[begin : begin + _STATES]).float()
        tokens = logits.argmax(-1)
        for draw in draws:
            if begin <= draw.place < begin + _STATES:
                weights = (logits[draw.place - begin] / max(draw.temperature, _COLDEST)).softmax(-1)
                tokens[draw.place - begin] = torch.multinomial(weights, 1, generator=draw.generator)[0]
        if known := {place - begin: token for place, token in forced.items() if begin <= place < begin + _STATES}:
            places, ids = torch.tensor([list(known), list(known.values())], device=tokens.device)
            tokens[places] = ids
        asked = torch.stack([tokens, torch.full_like(tokens, watched)], dim=-1)
        logprobs = logits.gather(-1, asked) - logits.logsumexp(-1, keepdim=True)
        # Every id is exact in a double.
        found.append(torch.cat([tokens[:, None].double(), logprobs.double()], dim=-1))
    return torch.cat(found)


def choices(chosen: torch.Tensor) -> list[Choice]:
    """What `choose` found, in the host's memory: one transfer."""
    return [Choice(int(token), logprob, other) for token, logprob, other in chosen.tolist()]
