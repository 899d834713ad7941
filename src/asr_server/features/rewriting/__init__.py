"""Transcripts with numbers in digits or in words, without chosen words, and without personal data that has a form."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from asr_server.engine.feature import Asked, Feature
from asr_server.engine.protocol import Option
from asr_server.server_feature import ServerFeature, ServerHook


def _options(asked: Asked) -> Iterator[Option]:
    from asr_server.features.rewriting.number_words import LANGUAGES
    from asr_server.features.rewriting.profanity import read_lists

    missing = [
        package
        for module, package in (("text_to_num", "text2num"), ("stdnum", "python-stdnum"))
        if not find_spec(module)
    ]
    reason = f"{' and '.join(missing)} cannot be imported" if missing else "where a request asks for it"
    languages = "" if missing else " ".join(LANGUAGES)
    yield Option("text_format", not missing, languages, reason)
    yield Option("redact", not missing, languages, reason)
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


def _server() -> ServerFeature:
    from asr_server.features.rewriting import rewriting

    return rewriting.SERVER


FEATURE = Feature("rewriting", options=_options, conflicts=_conflicts, extends=(ServerHook(_server),))
