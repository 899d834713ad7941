"""The choice of tokens from hidden states: the likeliest or a drawn one, and how likely it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

# Logits are made for this many states at a time: of a vocabulary of 151,936 words, 37 MiB in float32.
_STATES = 64
# Sampling is greedy long before this; by less than that, logits cannot be divided.
_COLDEST = 1e-4


@dataclass(frozen=True, slots=True)
class Draw:
    """A place where a token is drawn."""

    place: int  # number of the hidden state
    temperature: float  # above 0
    generator: torch.Generator | None


@dataclass(frozen=True, slots=True)
class Choice:
    """A token that was chosen."""

    token: int
    logprob: float  # its natural log-probability
    watched: float  # natural log-probability of the id that was watched


@dataclass(frozen=True, slots=True)
class Known:
    """Known facts about the tokens at some places, before they are chosen."""

    forced: Mapping[int, int] = field(default_factory=dict)  # the token at a place
    allowed: Mapping[int, Sequence[int]] = field(
        default_factory=dict
    )  # the tokens that may come at a place; any at the others


_NOTHING = Known()


def choose(
    head: Callable[[torch.Tensor], torch.Tensor],
    states: torch.Tensor,
    watched: int,
    draws: Sequence[Draw] = (),
    known: Known = _NOTHING,
) -> torch.Tensor:
    """Return what follows each of the hidden states (n, d): the likeliest token but for `draws` and what is `known`.

    On the device, (n, 3) as `choices` reads it. Log-probabilities are those among all tokens.
    """
    found = []
    for begin in range(0, len(states), _STATES):
        logits = head(states[begin : begin + _STATES]).float()
        tokens = logits.argmax(-1)
        limited = {
            place - begin: _only(logits[place - begin], ids)
            for place, ids in known.allowed.items()
            # No speech stays no speech. It is no way out for speech in another language, whose words would be lost.
            if begin <= place < begin + _STATES and int(tokens[place - begin]) != watched
        }
        for place, only in limited.items():
            tokens[place] = only.argmax()
        for draw in draws:
            if begin <= draw.place < begin + _STATES:
                of = limited.get(draw.place - begin, logits[draw.place - begin])
                weights = (of / max(draw.temperature, _COLDEST)).softmax(-1)
                tokens[draw.place - begin] = torch.multinomial(weights, 1, generator=draw.generator)[0]
        forced = {place - begin: token for place, token in known.forced.items() if begin <= place < begin + _STATES}
        if forced:
            places, ids = torch.tensor([list(forced), list(forced.values())], device=tokens.device)
            tokens[places] = ids
        asked = torch.stack([tokens, torch.full_like(tokens, watched)], dim=-1)
        logprobs = logits.gather(-1, asked) - logits.logsumexp(-1, keepdim=True)
        # Every id is exact in a double.
        found.append(torch.cat([tokens[:, None].double(), logprobs.double()], dim=-1))
    return torch.cat(found)


def _only(logits: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
    """Return the logits of one state with all but these ids impossible."""
    places = torch.tensor(ids, device=logits.device)
    return torch.full_like(logits, -torch.inf).index_copy(0, places, logits[places])


def choices(chosen: torch.Tensor) -> list[Choice]:
    """Return what `choose` found in the host's memory, with one transfer."""
    return [Choice(int(token), logprob, other) for token, logprob, other in chosen.tolist()]
