"""`asr-server doctor`: the figures of the machine."""

import os

from asr_server.cli import doctor


def test_the_figures_are_those_of_this_machine():
    """Cores of this process, memory that is there, the installed libraries."""
    here = doctor._look()
    assert here.cores == len(os.sched_getaffinity(0))
    assert here.memory_free_gib > 0
    assert 0 < here.memory_gib <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1024**3
    assert all(here.libraries.values())


def test_a_missing_package_is_an_empty_version():
    """A version that is missing is not an error: it is what the caller looks for."""
    assert doctor._version("no-such-package-here") == ""
