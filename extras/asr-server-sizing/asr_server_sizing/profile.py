"""What the steps of one model cost on one machine, as they were measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field

# Of audio, as the model's encoder makes them; and of the prompt around it.
AUDIO_TOKENS_PER_S = 13
PROMPT_TOKENS = 15
# What the released models write of speech, as far as nothing else was measured.
TOKENS_PER_S = 3.5
# Passes of the partials on 450 ms of new speech, where they were not measured: those of the demonstration model for its
# own recording (2026-11-23). The first is that of the prompt and of what is known of the answer.
PARTIAL_PASSES = (5, 3, 2, 2, 2, 3, 1)

_Cost = Annotated[float, Field(ge=0, lt=1000, allow_inf_nan=False)]
_Name = Annotated[str, Field(min_length=1, max_length=200)]


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds. A decode step of `n` rows costs `decode_s + n * decode_row_s`, a pass over prompts with `n` tokens
    `prefill_s + n * prefill_token_s`: front end and encoder are part of the tokens' cost."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    decode_s: _Cost
    decode_row_s: _Cost
    prefill_s: _Cost
    prefill_token_s: _Cost

    def decode(self, rows: int) -> float:
        """Seconds of a step in which so many rows get a token each."""
        return self.decode_s + rows * self.decode_row_s

    def prefill(self, tokens: int) -> float:
        """Seconds of a pass over prompts with so many tokens in all."""
        return self.prefill_s + tokens * self.prefill_token_s


@dataclass(frozen=True, slots=True)
class Profile:
    """One model on one machine.

    `slots`: rows of the batch. `measured_rows`: most rows of a step that was measured; what lies beyond is estimated.
    `tokens_per_s`: of an answer, by seconds of speech. `partial_passes`: passes of partials on 450 ms of new speech, as
    a sample of them. `cores`: those that the steps run on, 0 for an accelerator. `assumptions`: what was not measured,
    one sentence each.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    model: _Name
    hardware: _Name
    source: _Name
    measured_on: _Name
    slots: Annotated[int, Field(ge=1, le=4096)]
    measured_rows: Annotated[int, Field(ge=1, le=4096)]
    steps: StepCosts
    tokens_per_s: Annotated[float, Field(gt=0, le=100)] = TOKENS_PER_S
    partial_passes: Annotated[tuple[Annotated[int, Field(ge=1, le=1000)], ...], Field(min_length=1)] = PARTIAL_PASSES
    cores: Annotated[int, Field(ge=0, le=4096)] = 0
    assumptions: tuple[str, ...] = ()

    def answer_passes(self, speech_s: float) -> int:
        """Passes of an answer to so many seconds of speech without a draft, that of its prompt included."""
        return 1 + round(speech_s * self.tokens_per_s)
