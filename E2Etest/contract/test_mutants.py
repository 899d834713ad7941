"""The catalogue of faults fits the code, so that `make mutants` can run."""

import pytest

from tools.mutants import catalogue


@pytest.mark.slow("parses a module for each of five hundred faults")
def test_every_fault_can_be_put_in():
    """Each text to replace occurs once, and the tests that must catch the fault exist."""
    assert [f"{mutant.id}: {problem}" for mutant in catalogue() if (problem := mutant.problem())] == []


def test_every_fault_is_described_and_has_an_id_of_its_own():
    """A fault without tests would never be caught."""
    mutants = catalogue()
    assert len({mutant.id for mutant in mutants}) == len(mutants)
    assert all(mutant.what.endswith(".") and mutant.tests for mutant in mutants)
