"""The server that most tests share, and what a run records for the guarantees page (`guarantees.py`)."""

from pathlib import Path

import pytest

from E2Etest import guarantees, recordings
from E2Etest.process import ready, running
from E2Etest.scripted_llm import ScriptedLlm

_MEASUREMENTS = pytest.StashKey[dict[str, guarantees.Measurement]]()


def pytest_addoption(parser):
    """For `python -m E2Etest.guarantees`."""
    parser.addoption("--guarantees", type=Path, help="file to write the measurements of the guarantees to")
    parser.addoption("--only-guarantees", default="", help="names of guarantees, comma-separated")


def pytest_configure(config):
    """Nothing is measured yet."""
    config.stash[_MEASUREMENTS] = {}


def pytest_collection_modifyitems(config, items):
    """Note which test demonstrates which guarantee. A soak test runs only on request."""
    only = {name for name in config.getoption("only_guarantees").split(",") if name}
    soaking = "soak" in (config.getoption("markexpr") or "") or config.getoption("guarantees")
    kept = []
    for item in items:
        marker = item.get_closest_marker("guarantee")
        name = marker.args[0] if marker else ""
        if (only and name not in only) or (item.get_closest_marker("soak") and not soaking):
            continue
        if marker:
            config.stash[_MEASUREMENTS][item.nodeid] = guarantees.Measurement(item.nodeid, name)
        kept.append(item)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """The outcome of a test is that of its worst phase."""
    report = yield
    measurement = item.config.stash[_MEASUREMENTS].get(item.nodeid)
    if measurement is not None and (report.when == "call" or report.failed):
        measurement.outcome = report.outcome
    return report


def pytest_sessionfinish(session):
    """Write the measurements if a file was named."""
    if (path := session.config.getoption("guarantees", None)) is not None:
        guarantees.write(path, session.config.stash[_MEASUREMENTS].values())


@pytest.fixture
def measured(request):
    """Records a bounded quantity of the test's guarantee and asserts its limit: `measured("exit_s", 1.3)`."""
    return request.config.stash[_MEASUREMENTS][request.node.nodeid].measured


@pytest.fixture
def note(request):
    """Records an observation for the guarantees page, in words: `note("16 of 16 answered")`."""
    return request.config.stash[_MEASUREMENTS][request.node.nodeid].notes.append


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A running server with the demonstration model and small limits."""
    log = tmp_path_factory.mktemp("server") / "log"
    with running(log, MAX_UPLOAD_MB="4", MAX_AUDIO_S="120", IDLE_TIMEOUT="600") as server:
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
def sample():
    """The bundled recording and its words."""
    return recordings.sample()
