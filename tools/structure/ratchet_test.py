"""The figures of the real source may only get better."""

import re
from functools import cache

import pytest

from tools.structure import parts
from tools.structure.figures import figures
from tools.structure.ratchet import ROOT, problems, recorded, table
from tools.structure.source import read


@cache
def _source():
    return read(ROOT)


@pytest.mark.slow("parses every module")
def test_no_figure_gets_worse():
    """What got better is recorded, so that it stays. `python -m tools.structure` prints the same table."""
    found = figures(_source())
    print(table(found, recorded()))
    assert problems(found, recorded()) == []
    assert recorded().keys() == {figure.name for figure in found}


@pytest.mark.parametrize("name", parts.PATHS)
def test_a_path_leads_to_the_engine(name):
    """It prints its modules. What runs in a child process alone is named where it is started, and not on the path."""
    source = _source()
    modules = parts.path(source, name)
    print(*modules, sep="\n")
    lines = [line for module in source.modules.values() for line in module.lines if '"asr_server.' in line]
    children = {child for line in lines for child in re.findall(r'"asr_server\.([a-z_.]+)"', line)} & set(
        source.modules
    )
    assert children
    assert not children & set(modules)
    to_engine = set(parts.path(source, name, to_engine=True))
    assert {"engine.client", "engine.speech.client"} & to_engine
    assert to_engine < set(modules)
