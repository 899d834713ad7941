"""The catalogue of faults fits the code, so that `make mutants` can run."""

import pytest

from tools.mutants import Mutant, catalogue


@pytest.mark.slow("parses a module for each of five hundred faults")
def test_every_fault_can_be_put_in():
    """Each text to replace occurs once, and the tests that must catch the fault exist."""
    assert [f"{mutant.id}: {problem}" for mutant in catalogue() if (problem := mutant.problem())] == []


def test_every_fault_is_described_and_has_an_id_of_its_own():
    """A fault without tests would never be caught."""
    mutants = catalogue()
    assert len({mutant.id for mutant in mutants}) == len(mutants)
    assert all(mutant.what.endswith(".") and mutant.tests for mutant in mutants)


def test_a_fault_that_no_longer_fits_is_found(tmp_path):
    """A file that has moved, a text that is not there or twice, a test that was renamed."""
    (tmp_path / "code.py").write_text("a = 1\nb = 2\nb = 2\n")
    (tmp_path / "code_test.py").write_text("def test_a():\n    pass\n")

    def problem(file="code.py", old="a = 1", test="code_test.py::test_a"):
        return Mutant("id", "What.", file, [(old, "c = 3")], [test]).problem(tmp_path)

    assert problem() == ""
    assert problem(file="moved.py") == "moved.py does not exist"
    assert "0 times" in problem(old="a = 2")
    assert "2 times" in problem(old="b = 2")
    assert "no such tests" in problem(test="code_test.py::test_b")
    assert "no such tests" in problem(test="moved_test.py")
