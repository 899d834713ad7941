"""The server that most tests share, and what a run tells of the promises it shows (`promises.py`)."""

from pathlib import Path

import numpy as np
import pytest

from E2Etest import promises, recordings
from E2Etest.contract import inprocess
from E2Etest.process import ready
from E2Etest.scripted_llm import ScriptedLlm

_SHOWN = pytest.StashKey[dict[str, promises.Shown]]()


def pytest_addoption(parser):
    """For `python -m E2Etest.promises`."""
    parser.addoption("--promises", type=Path, help="file to write what was shown of the promises to")
    parser.addoption("--only-promises", default="", help="names of promises, comma-separated")


def pytest_configure(config):
    """Nothing is shown yet."""
    config.stash[_SHOWN] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Notes who shows what. A soak runs only where it is asked for. The tests of a module run on one worker, which has
    the servers that they share; those that need a certain port run on one worker too."""
    for item in items:
        if not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    only = {name for name in config.getoption("only_promises").split(",") if name}
    soaking = "soak" in (config.getoption("markexpr") or "") or config.getoption("promises")
    kept = []
    for item in items:
        marker = item.get_closest_marker("promise")
        name = marker.args[0] if marker else ""
        if (only and name not in only) or (item.get_closest_marker("soak") and not soaking):
            continue
        if marker:
            config.stash[_SHOWN][item.nodeid] = promises.Shown(item.nodeid, name)
        kept.append(item)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """The outcome of a test is that of its worst part."""
    report = yield
    shown = item.config.stash[_SHOWN].get(item.nodeid)
    if shown is not None and (report.when == "call" or report.failed):
        shown.outcome = report.outcome
    return report


def pytest_sessionfinish(session):
    """Tell it to who asked."""
    if (path := session.config.getoption("promises", None)) is not None:
        promises.write(path, session.config.stash[_SHOWN].values())


@pytest.fixture
def figure(request):
    """Notes a figure that this test measured for its promise, in words: `figure("p99 12 ms")`."""
    return request.config.stash[_SHOWN][request.node.nodeid].figures.append


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
def sample():
    """The bundled recording and its words."""
    return recordings.sample()
