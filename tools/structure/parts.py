"""The core, the concurrent code and the paths of the package, as `parts.toml` names them."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tools.structure.source import Source, closure, is_below

_PARTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
PATHS = tuple(_PARTS["paths"])


def core(source: Source) -> list[str]:
    """The modules that are neither a feature nor a command."""
    others = [name for names in _PARTS["not_core"].values() for name in names]
    return sorted(set(source.modules) - set(_below(source, others)))


def concurrent(source: Source) -> list[str]:
    """The modules in which several threads, tasks or processes run at once, and those that surround them."""
    return _below(source, _PARTS["concurrent"])


def path(source: Source, name: str, to_engine: bool = False) -> list[str]:
    """The modules of a path, all or down to the engine's contract. A child process is started and not imported."""
    part, contract = _PARTS["paths"][name], _PARTS["contract"]
    start = part["use_case"] if to_engine else part["use_case"] + part["engine"]
    return sorted(closure(source.loaded, _checked(source, start), _checked(source, contract) if to_engine else ()))


def _below(source: Source, prefixes: list[str]) -> list[str]:
    return [name for name in source.modules if any(is_below(name, each) for each in _checked(source, prefixes))]


def _checked(source: Source, names: list[str]) -> list[str]:
    if missing := set(names) - source.modules.keys():
        raise LookupError(f"tools/structure/parts.toml names what is not there: {', '.join(sorted(missing))}")
    return names
