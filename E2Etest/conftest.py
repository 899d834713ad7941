"""The server that most tests share, and what a run records for the guarantees page (`guarantees.py`)."""

from pathlib import Path

import numpy as np
import pytest
from xdist.scheduler import LoadFileScheduling

from asr_server.translator.conftest import ScriptedLlm
from E2Etest import guarantees, recordings
from E2Etest.contract import inprocess
from E2Etest.process import fake_model, ready

_NEED_PORTS = {"E2Etest/test_docs.py", "E2Etest/cli/test_docs.py"}
_MEASUREMENT = pytest.StashKey[guarantees.Measurement]()
_MEASUREMENTS = pytest.StashKey[list[guarantees.Measurement]]()


def pytest_addoption(parser):
    """For `python -m E2Etest.guarantees`."""
    parser.addoption("--guarantees", type=Path, help="file to write the measurements of the guarantees to")
    parser.addoption("--only-guarantees", default="", help="names of guarantees, comma-separated")


def pytest_configure(config):
    """Nothing is measured yet."""
    config.stash[_MEASUREMENTS] = []


class _ByModule(LoadFileScheduling):
    """All tests of a module run on one worker, so that they share its servers. Modules whose tests need port 8100 or
    8137 run on one worker too. (pytest-xdist's own groups have no effect with pytest 9.2.)"""

    def _split_scope(self, nodeid):
        module = super()._split_scope(nodeid)
        return "modules that need certain ports" if module in _NEED_PORTS else module


def pytest_xdist_make_scheduler(config, log):
    """How tests are given to several workers."""
    return _ByModule(config, log)


def pytest_collection_modifyitems(config, items):
    """Note which test demonstrates which guarantee. A soak test runs only on request, and slow tests run first."""
    only = {name for name in config.getoption("only_guarantees").split(",") if name}
    soaking = "soak" in (config.getoption("markexpr") or "") or config.getoption("guarantees")
    kept = []
    for item in items:
        marker = item.get_closest_marker("guarantee")
        name = marker.args[0] if marker else ""
        if (only and name not in only) or (item.get_closest_marker("soak") and not soaking):
            continue
        if marker:
            item.stash[_MEASUREMENT] = guarantees.Measurement(item.nodeid, name)
            config.stash[_MEASUREMENTS].append(item.stash[_MEASUREMENT])
        kept.append(item)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = sorted(kept, key=lambda item: item.get_closest_marker("slow") is None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """The outcome of a test is that of its worst phase."""
    report = yield
    measurement = item.stash.get(_MEASUREMENT, None)
    if measurement is not None and (report.when == "call" or report.failed):
        measurement.outcome = report.outcome
    return report


def pytest_sessionfinish(session):
    """Write the measurements if a file was named."""
    if (path := session.config.getoption("guarantees", None)) is not None:
        guarantees.write(path, session.config.stash[_MEASUREMENTS])


@pytest.fixture
def measured(request):
    """Records a bounded quantity of the test's guarantee and asserts its limit: `measured("exit_s", 1.3)`."""
    return request.node.stash[_MEASUREMENT].measured


@pytest.fixture
def note(request):
    """Records an observation for the guarantees page, in words: `note("16 of 16 answered")`."""
    return request.node.stash[_MEASUREMENT].notes.append


@pytest.fixture(scope="session")
def start(tmp_path_factory):
    """A function that starts a server in this process, with the fake engine: `with start(MAX_BATCH="1") as server`."""
    inprocess.configure_logging()
    return lambda **options: inprocess.running(tmp_path_factory.mktemp("server"), **options)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A running server process with the demonstration model loaded and small limits."""
    log = tmp_path_factory.mktemp("server") / "log"
    with ready(log, MAX_UPLOAD_MB="4", MAX_AUDIO_S="120") as server:
        yield server


@pytest.fixture(scope="session")
def guarded(tmp_path_factory):
    """A running server with two keys and an endpoint for translations, the model loaded, that logs all it ever logs."""
    log = tmp_path_factory.mktemp("guarded") / "log"
    keys = {"API_KEYS": "sk-canary-first,sk-canary-second", "OPENAI_API_KEY": "sk-canary-elsewhere"}
    limits = {"MAX_UPLOAD_MB": "4", "MAX_AUDIO_S": "120"}
    with ScriptedLlm() as llm:
        keys |= {"OPENAI_BASE_URL": llm.base_url, "TRANSLATE_MODEL": "scripted"}
        with ready(log, LOG_LEVEL="TRACE", **keys, **limits) as server:
            yield server


@pytest.fixture(scope="session")
def speech():
    """The bundled recording and a pause that ends it: int16 at 16 kHz."""
    return np.concatenate([recordings.samples(), np.zeros(14_400, np.int16)])


@pytest.fixture(scope="session")
def talk(speech):
    """The same, twice."""
    return np.concatenate([speech, speech])


@pytest.fixture(scope="session")
def fake_sample(tmp_path_factory):
    """The settings for a server process that answers the words of the bundled recording, whatever it hears."""
    return fake_model(tmp_path_factory.mktemp("script"), text=recordings.sample()[1])


@pytest.fixture(scope="session")
def sample():
    """The bundled recording and its words."""
    return recordings.sample()
