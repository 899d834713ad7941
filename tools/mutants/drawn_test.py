"""Random faults: what is drawn."""

import pytest

from tools.mutants import ROOT, drawn


@pytest.mark.slow("parses every module")
def test_each_fault_changes_one_line_and_can_be_put_in():
    for mutant in drawn.draw(40, seed=3):
        source = (ROOT / mutant.file).read_text(encoding="utf-8")
        before, after = source.splitlines(), mutant.applied(source).splitlines()
        assert mutant.problem() == ""
        assert sum(old != new for old, new in zip(before, after, strict=True)) == 1


@pytest.mark.slow("parses every module")
def test_a_seed_draws_the_same_faults():
    assert drawn.draw(5, seed=8) == drawn.draw(5, seed=8) != drawn.draw(5, seed=9)
