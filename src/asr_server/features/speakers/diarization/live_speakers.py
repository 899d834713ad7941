"""The interface that distinguishes the speakers of a live session, as the session sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from asr_server.features.speakers.diarization.turns import Turn, VoicePrint


class LiveSpeakers(Protocol):
    """The speakers of one live session, from its first sample on."""

    @property
    def settled_ms(self) -> int:
        """The time of the session before which no turn changes any more."""

    @property
    def voice_prints(self) -> Mapping[int, VoicePrint]:
        """Return the voices of the speakers who were heard enough. Another mapping takes its place when any changes."""

    async def push(self, samples: NDArray[np.float32]) -> tuple[Turn, ...]:
        """Add audio, mono at 16 kHz. Returns the turns that are new or have changed, in milliseconds of the session.

        They replace all earlier turns in their time. Raises `SpeakersUnavailable`.
        """

    async def close(self) -> None:
        """End the analysis: no more audio comes."""


class LiveSpeakerSource(Protocol):
    """Makes the `LiveSpeakers` of each session."""

    @property
    def voice_model(self) -> str:
        """Return the name of the model that makes the voice prints. Prints of different models cannot be compared."""

    def check_live(self) -> None:
        """Raise `UnsupportedValue`, with the reason, if this server cannot distinguish live speakers."""

    async def live(self) -> LiveSpeakers:
        """Return the speakers of a new session. Raises `SpeakersUnavailable`."""
