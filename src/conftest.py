"""For all tests: how OpenMP threads wait, tests without torch, and how many examples hypothesis tries."""

import faulthandler
import os
import re
import signal
import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec

import pytest
from hypothesis import is_hypothesis_test, settings

# As in the server, whoever imports torch first.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# A machine that is busy is no reason for a failure.
settings.register_profile("default", deadline=None)
settings.register_profile("nightly", deadline=None)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "default")
settings.load_profile(PROFILE)
# The share of a test's examples (its own number, or 100) that are tried. The nightly run has the time to look further.
EXAMPLES = {"default": 0.2, "nightly": 2.0}[PROFILE]

# A shell that runs the tests in the background makes them ignore Ctrl-C, and the commands that they start would too.
signal.signal(signal.SIGINT, signal.default_int_handler)

_MARKED = re.compile(r"^pytestmark = (?:\[[^]]*|.*)\bpytest\.mark\.torch\b", re.MULTILINE)


class _NoTorch(Loader):
    """A finder whose torch cannot be imported, and a plugin that leaves out modules of which every test needs it."""

    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name == "torch" else None

    def exec_module(self, module):
        raise ImportError("a test without the marker `torch` imports torch")

    def pytest_ignore_collect(self, collection_path):
        if collection_path.suffix == ".py" and _MARKED.search(collection_path.read_text()):
            return True
        return None


def pytest_configure(config):
    """`-m "not torch"` means that torch is not imported: a test that tries fails, and needs the marker."""
    if "not torch" in (config.getoption("markexpr") or ""):
        assert "torch" not in sys.modules
        no_torch = _NoTorch()
        sys.meta_path.insert(0, no_torch)
        config.pluginmanager.register(no_torch)  # a hook of this file would not be asked about tools/ and extras/


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown():
    """End the process, with the stacks of all threads, where a fixture hangs: the limit of a test's time fires once."""
    faulthandler.dump_traceback_later(120, exit=True, file=sys.__stderr__)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_collection_modifyitems(items):
    """Each test of hypothesis tries as many examples as the profile says."""
    machines = {
        item.cls for item in items if isinstance(getattr(getattr(item, "cls", None), "settings", None), settings)
    }
    for machine in machines:
        machine.settings = _scaled(machine.settings)
    found = [item for item in items if getattr(item, "cls", None) not in machines]
    for test in {item.obj for item in found if is_hypothesis_test(getattr(item, "obj", None))}:
        # There is no public way to change the settings of a test that has some.
        test._hypothesis_internal_use_settings = _scaled(test._hypothesis_internal_use_settings)  # noqa: SLF001


def _scaled(own):
    examples = max(1, round(own.max_examples * EXAMPLES))
    # Tests that try the same examples every time try new ones at night.
    same = own.derandomize and PROFILE == "default"
    return settings(own, max_examples=examples, derandomize=same)
