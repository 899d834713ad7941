"""What a feature adds to the server: the one place that says which hooks there are.

A feature lives in its own folder below `features/`, and the rest of the server does not know its name. The plan is
resolved with the features of the process and carries them to whoever builds something from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from asr_server.core.settings import Settings
from asr_server.engine.protocol import Option


def _nothing(settings: Settings) -> Iterable[str]:
    return ()


def _no_options(settings: Settings) -> Iterable[Option]:
    return ()


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature, as a value; a hook that a feature does not use keeps its default."""

    name: str  # that of its folder
    options: Callable[[Settings], Iterable[Option]] = _no_options  # shown by `/health`, each with a reason
    conflicts: Callable[[Settings], Iterable[str]] = _nothing  # sentences that say what was asked for and cannot run
