"""The figures of the source beside the recorded ones, which may only get better."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from tools.structure.figures import Figure, figures
from tools.structure.parts import PATHS, path
from tools.structure.source import read

ROOT = Path(__file__).parents[2]
_RECORD = Path(__file__).with_name("ratchet.json")
# A figure that is better by more than this share of the recorded one has to be recorded.
_SLACK = 0.02


def recorded() -> dict[str, float]:
    return dict(json.loads(_RECORD.read_text("utf-8")))


def _gain(figure: Figure, old: Mapping[str, float]) -> float:
    gain = old.get(figure.name, figure.value) - figure.value
    return -gain if figure.rises else gain


def problems(found: Iterable[Figure], old: Mapping[str, float]) -> list[str]:
    """Say which figures got worse, and which have to be recorded."""
    said = []
    for figure in found:
        if _gain(figure, old) < 0:
            said.append(f"{figure.name}: {figure.value:g} is worse than {old[figure.name]:g}; --list {figure.name}")
        elif figure.name not in old or _gain(figure, old) > _SLACK * old[figure.name]:
            said.append(f"{figure.name}: record {figure.value:g} with python -m tools.structure --record")
    return said


def improved(found: Iterable[Figure], old: Mapping[str, float]) -> dict[str, float]:
    """Return the values to record: the better one of each recorded figure and today's."""
    return {figure.name: old[figure.name] if _gain(figure, old) < 0 else figure.value for figure in found}


def table(found: Iterable[Figure], old: Mapping[str, float]) -> str:
    """A line for each figure: its name, today's value, the recorded one, the aim and what it counts."""
    lines = [f"{'':26}{'today':>9}{'recorded':>9}{'aim':>6}"]
    for figure in found:
        aim = "" if figure.aim is None else f"{figure.aim:g}"
        lines.append(f"{figure.name:26}{figure.value:9g}{old.get(figure.name, 0):9g}{aim:>6}  {figure.title}")
    return "\n".join(lines)


def main() -> None:
    """Print what the arguments ask for."""
    parser = argparse.ArgumentParser(prog="python -m tools.structure", description=__doc__)
    parser.add_argument("--path", choices=PATHS, help="list the modules of this path with their lines")
    parser.add_argument("--list", metavar="NAME", help="list what this figure counts")
    parser.add_argument("--record", action="store_true", help=f"write figures that got better to {_RECORD.name}")
    wanted = parser.parse_args()
    source = read(ROOT)
    if wanted.path:
        print(*(f"{source.size([name]):5} {name}" for name in path(source, wanted.path)), sep="\n")
        return
    found = {figure.name: figure for figure in figures(source)}
    if wanted.list:
        print(*(found[wanted.list].found if wanted.list in found else found), sep="\n")
        return
    if wanted.record:
        _RECORD.write_text(json.dumps(improved(found.values(), recorded()), indent=2) + "\n", "utf-8")
    print(table(found.values(), recorded()))
    print(*problems(found.values(), recorded()), sep="\n")
