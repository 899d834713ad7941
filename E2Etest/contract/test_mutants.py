"""The catalogue of faults fits the code, so that `make mutants` can run."""

from E2Etest.mutants import catalogue


def test_every_fault_can_be_put_in():
    """Each text to replace occurs once, and the tests that must catch it exist."""
    assert [f"{mutant.id}: {problem}" for mutant in catalogue() if (problem := mutant.problem())] == []


def test_every_fault_has_an_id_of_its_own_and_changes_something():
    """A fault that changes nothing would never be caught."""
    mutants = catalogue()
    assert len({mutant.id for mutant in mutants}) == len(mutants) >= 118
    assert all(old != new for mutant in mutants for old, new in mutant.replace)
    assert all(mutant.tests for mutant in mutants)
