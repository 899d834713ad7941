"""The figures of the real source may only get better."""

import pytest

from tools.structure.figures import figures
from tools.structure.ratchet import ROOT, problems, recorded, table
from tools.structure.source import read


@pytest.mark.slow("parses every module")
def test_no_figure_gets_worse():
    """What got better is recorded, so that it stays. `python -m tools.structure` prints the same table."""
    found = figures(read(ROOT))
    print(table(found, recorded()))
    assert problems(found, recorded()) == []
    assert recorded().keys() == {figure.name for figure in found}
