"""`asr-server complete`: the words that may stand next on a command line. The scripts of `completion` call it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the words of the command line after its first, up to the one that is being typed, which may be empty."""
    parser.add_argument("words", nargs="*")
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    for word in candidates(parsed.words):
        print(word)
    return 0


def candidates(words: Sequence[str]) -> list[str]:
    """Commands, options or values that begin like the last word; none where a file is expected."""
    from asr_server.cli.main import build_parser

    *before, typed = words or [""]
    parser = build_parser(before[0] if before else "")
    for word in before:
        parser = parser.subcommands.get(word, parser)
    option = parser.options.get(before[-1]) if before else None
    if option is not None and option.nargs != 0:
        known = getattr(option, "completions", option.choices) or ()
        listed, comma, typed = typed.rpartition(",")
        return [f"{listed}{comma}{value}" for value in map(str, known) if value.startswith(typed)]
    known = parser.options if typed.startswith("-") else parser.choices
    return [word for word in known if word.startswith(typed)]
