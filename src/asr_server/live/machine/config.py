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
    """The configuration of the whole session, and the turn configuration it begins with."""

    resampler: Callable[[int], Resample]  # makes a fresh stream from an input rate in Hz to 16 kHz
    rules: TurnConfig = field(default_factory=TurnConfig)
    input_rate_hz: int = SAMPLE_RATE
    # The first utterance holds all audio before it, if it begins within this. Voice detection that begins in the middle
    # of speech hears it late.
    first_prefix_samples: int = 0
    partial_every_samples: int = 7_200  # of new speech between two partials
    tail_samples: int = 2_400  # of audio behind the speech that belong to the utterance
    # The length at which a part without a long pause is cut. An utterance that is longer in all ends in its next long
    # pause.
    max_utterance_samples: int = 30 * SAMPLE_RATE
    # An utterance with a longer pause is transcribed in parts, each with the margin before and behind its speech.
    max_pause_samples: int = 36_800
    margin_samples: int = 4_800
    commit: CommitRules = field(default_factory=CommitRules)
    # For the default model, partials come from a less accurate engine than finals. None of them serves as a final or
    # commits a word; the engine of the finals is asked too after `confirm_every_samples` without a pause.
    separate_final_engine: bool = False
    confirm_every_samples: int = 5 * SAMPLE_RATE
    on_samples: Callable[[Samples], None] = lambda samples: None  # gets all audio that the clock counts, in order


@dataclass(frozen=True, slots=True)
class AudioAccount:
    """The uses of the samples at 16 kHz that have come so far: `received` is the sum of the others."""

    received: int
    in_utterances: int
    in_silence: int
    discarded: int
    open: int
