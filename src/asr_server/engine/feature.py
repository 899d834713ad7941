"""The hooks by which a feature adds to the server.

A feature lives in its own folder below `features/`, and the rest of the server does not know its name. The plan is
resolved with the features of the process and carries them to whoever builds something from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from asr_server.core.settings import Settings
from asr_server.engine.protocol import Option

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from asr_server.features.speech_output.engines.protocol import SpeechEngine, SpeechTraits


class EndOfTurnModel(Protocol):
    """Estimates from the sound whether a speaker has finished."""

    def probability(self, speech: NDArray[np.float32]) -> float:
        """Return how likely the speaker has finished, for mono speech (n,) at 16 kHz up to now.

        Called on one thread, which it may block. May raise anything where it cannot tell.
        """


@dataclass(frozen=True, slots=True)
class SpeechFeature:
    """Engines of speech that a feature adds, in the order in which they are preferred.

    What they do not speak is spoken by the engine that would run without the feature.
    """

    name: str  # a value of SPEECH, which means `default`
    default: str  # the value that SPEECH=auto means where the engines can run
    takes: Callable[[str], bool]  # whether a value of SPEECH names these engines
    missing: Callable[[str], str]  # why they cannot run, "" if they can
    reason: str  # what `/health` says about them
    traits: Callable[[str], tuple[SpeechTraits, ...]]  # takes a value of SPEECH; imports no libraries
    build: Callable[[str], tuple[SpeechEngine, ...]]  # takes a value of SPEECH
    download: Callable[[str], Path | None]  # of a name that is a value of SPEECH too; None where it is another's


def _nothing(settings: Settings) -> Iterable[str]:
    return ()


def _no_options(settings: Settings) -> Iterable[Option]:
    return ()


# The option of the feature that has a model of the end of turns.
END_OF_TURN = "end_of_turn"


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature as a value; a hook that a feature does not use keeps its default."""

    name: str  # the name of its folder
    options: Callable[[Settings], Iterable[Option]] = _no_options  # shown by `/health`, each with a reason
    end_of_turn: Callable[[], EndOfTurnModel] | None = None  # called where its option is active
    speech: SpeechFeature | None = None
    conflicts: Callable[[Settings], Iterable[str]] = _nothing  # sentences that say what was asked for and cannot run
