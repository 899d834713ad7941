"""The argument parser of all commands: an error is one line and a hint, with the name that was probably meant."""

from __future__ import annotations

import argparse
import difflib
import os
import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NoReturn

from asr_server.cli.failure import Exit, shown

_ARGUMENT = re.compile(r"argument ([^:]+): ")


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Shows options as `-f, --format FORMAT`, and only positional and required arguments in the usage line."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)
        # argparse does not count the indentation of commands.
        self._action_max_length = 15

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"

    def _format_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any) -> str:
        groups = [group for group in groups if group.required]
        either = [action for group in groups for action in group._group_actions]  # noqa: SLF001
        needed = [action for action in actions if action.required or not action.option_strings or action in either]
        text = super()._format_usage(usage, needed, groups, prefix)
        return text if needed == list(actions) else text.replace(self._prog, f"{self._prog} [options]", 1)


class Parser(argparse.ArgumentParser):
    """The parser of the program and of each command. Its errors begin with the name of the command."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": _HelpFormatter} | options)

    def error(self, message: str) -> NoReturn:
        """Exit with 2 after two lines: what is wrong, and how to see all arguments."""
        message = message.replace("the following arguments are required: ", "missing argument: ")
        message = message if message.endswith((".", "?")) else f"{message}."
        # argparse lists all names of an argument; the longest is enough.
        message = _ARGUMENT.sub(lambda found: f"{max(found[1].split('/'), key=len)}: ", message, count=1)
        self.exit(Exit.USAGE, f"{self.prog}: {shown(message)}\n  Arguments and examples: {self.prog} --help\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments and reject unknown ones: the command's own parser can best guess what was meant."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            option = unknown[0].partition("=")[0]
            if not option.startswith("-"):
                self.error(f"unexpected argument {option!r}")
            known = [action.option_strings for action in self._actions if action.help != argparse.SUPPRESS]
            self.error(f"unknown option {option}.{did_you_mean(option, chain.from_iterable(known))}")
        return parsed, []

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Check a value as argparse does, with other words in the message."""
        if action.choices is None or value in action.choices:
            return
        names = [str(choice) for choice in action.choices]
        if not isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            raise argparse.ArgumentError(action, unknown_name(value, names))
        guess = did_you_mean(value, names)
        if not guess and action.metavar == "COMMAND" and ("." in value or os.path.exists(value)):
            guess = f" Did you mean {self.prog} transcribe {value}?"
        kind = str(action.metavar).lower()
        self.error(f"there is no {kind} {value!r}.{guess or ' There are: ' + ', '.join(names)}")


def unknown_name(name: str, known: Sequence[str]) -> str:
    return f"{name!r} is not one of {', '.join(known)}.{did_you_mean(name, known)}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence with the most similar name, after a space; "" if none is similar."""
    by_folded = {option.lower(): option for option in known}
    close = difflib.get_close_matches(name.lower(), by_folded, n=1)
    return f" Did you mean {by_folded[close[0]]}?" if close else ""
