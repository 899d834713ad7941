"""The measured costs of the steps of one model on one machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field

# Tokens of audio, as the model's encoder makes them; and of the prompt around it.
AUDIO_TOKENS_PER_S = 13
PROMPT_TOKENS = 15
# The tokens that the released models write for a second of speech, if nothing else was measured.
TOKENS_PER_S = 3.5
# Passes of the partials on 450 ms of new speech, if they were not measured: those of the demonstration model for its
# own recording (2026-11-23). The first is that of the prompt and of the part of the answer that is known.
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
        """Return the seconds of a step in which this many rows get a token each."""
        return self.decode_s + rows * self.decode_row_s

    def prefill(self, tokens: int) -> float:
        """Return the seconds of a pass over prompts with this many tokens in all."""
        return self.prefill_s + tokens * self.prefill_token_s


@dataclass(frozen=True, slots=True)
class Profile:
    """One model on one machine."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    model: _Name
    hardware: _Name
    source: _Name
    measured_on: _Name
    slots: Annotated[int, Field(ge=1, le=4096)]  # rows of the batch
    measured_rows: Annotated[int, Field(ge=1, le=4096)]  # the most in a measured step; costs of more are estimated
    steps: StepCosts
    tokens_per_s: Annotated[float, Field(gt=0, le=100)] = TOKENS_PER_S  # of an answer, by seconds of speech
    # A sample of the passes of partials on 450 ms of new speech.
    partial_passes: Annotated[tuple[Annotated[int, Field(ge=1, le=1000)], ...], Field(min_length=1)] = PARTIAL_PASSES
    cores: Annotated[int, Field(ge=0, le=4096)] = 0  # on which the steps run, 0 for an accelerator
    assumptions: tuple[str, ...] = ()  # a sentence for each figure that was not measured

    def answer_passes(self, speech_s: float) -> int:
        """Return the passes of an answer to this much speech without a draft, including that of its prompt."""
        return 1 + round(speech_s * self.tokens_per_s)
