"""The configuration of a whole live session, and the account of its audio."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from asr_server.core.audio import SAMPLE_RATE
from asr_server.live.machine.agreement import CommitRules
from asr_server.live.machine.events import Samples, TurnConfig
from asr_server.live.machine.framing import Resample


@dataclass(frozen=True, slots=True, eq=False)
class LiveMachineConfig:
    """The configuration of the whole session, and the turn configuration it begins with.

    `resampler`: makes a fresh stream from an input rate in Hz to 16 kHz.
    `partial_every_samples`: new speech between two partials. `tail_samples`: audio behind the speech that belongs to
    the utterance. `max_pause_samples`: an utterance with a longer pause is transcribed in parts, each with
    `margin_samples` of the pause before and behind its speech. `max_utterance_samples`: the length of a part without
    such a pause at which the utterance is cut; one that is longer in all ends in its next long pause.
    `separate_final_engine`: for the default model, partials come from a less accurate engine than finals. None of them
    serves as a final or commits a word; the engine of the finals is asked too after `confirm_every_samples` without a
    pause. `on_samples`: gets all audio that the clock counts, in order.
    """

    resampler: Callable[[int], Resample]
    rules: TurnConfig = field(default_factory=TurnConfig)
    input_rate_hz: int = SAMPLE_RATE
    partial_every_samples: int = 7_200
    tail_samples: int = 2_400
    max_utterance_samples: int = 30 * SAMPLE_RATE
    max_pause_samples: int = 36_800
    margin_samples: int = 4_800
    commit: CommitRules = field(default_factory=CommitRules)
    separate_final_engine: bool = False
    confirm_every_samples: int = 5 * SAMPLE_RATE
    on_samples: Callable[[Samples], None] = lambda samples: None


@dataclass(frozen=True, slots=True)
class AudioAccount:
    """The uses of the samples at 16 kHz that have come so far: `received` is the sum of the others."""

    received: int
    in_utterances: int
    in_silence: int
    discarded: int
    open: int
