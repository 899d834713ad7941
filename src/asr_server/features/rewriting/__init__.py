"""Rewritten transcripts: numbers in digits or words, chosen words masked, personal data of a known form masked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from asr_server.engine.feature import Asked, Feature
from asr_server.engine.protocol import Option


def _options(asked: Asked) -> Iterator[Option]:
    from asr_server.features.rewriting.number_words import LANGUAGES
    from asr_server.features.rewriting.profanity import read_lists

    for name in ("text_format", "redact"):
        yield Option(name, True, " ".join(LANGUAGES), "if a request asks for it")
    folder = asked.settings.profanity_lists
    if not folder:
        yield Option("profanity", False, "", "PROFANITY_LISTS is not set")
    elif not any(_conflicts(asked)):
        yield Option("profanity", True, " ".join(read_lists(Path(folder))), "the lists of PROFANITY_LISTS")


def _conflicts(asked: Asked) -> Iterator[str]:
    """Yield a sentence for lists that cannot be used."""
    from asr_server.features.rewriting.profanity import read_lists

    if folder := asked.settings.profanity_lists:
        try:
            read_lists(Path(folder))
        except ValueError as error:
            yield f"PROFANITY_LISTS={folder}: {error}."


FEATURE = Feature("rewriting", options=_options, conflicts=_conflicts, server=f"{__name__}.rewriting")
