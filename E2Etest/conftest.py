"""The server that most tests share, and the records of a run for the guarantees page (`guarantees.py`)."""

import os
import signal
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from xdist.scheduler import LoadFileScheduling

from asr_server import demo
from asr_server.engine import capabilities
from asr_server.features.translation.conftest import ScriptedLlm
from E2Etest.drive import inprocess, recordings
from E2Etest.drive.process import GUARDED, RunningServer, fake_model, ready
from E2Etest.drive.session import pcm_of
from tools import guarantees

# A shell that runs the tests in the background makes them ignore Ctrl-C, and the commands that they start would too.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The marks of all tests of a folder, unless a module or a test says otherwise.
_OF_FOLDERS = {
    "chaos": (pytest.mark.nightly, pytest.mark.integration, pytest.mark.timeout(900)),
    "replicas": (pytest.mark.nightly, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)),
}
_NEED_PORTS = {"E2Etest/test_docs.py", "E2Etest/cli/test_docs.py"}
_MEASUREMENT = pytest.StashKey[guarantees.Measurement]()
_MEASUREMENTS = pytest.StashKey[list[guarantees.Measurement]]()


def pytest_addoption(parser):
    """Add the options that `python -m tools.guarantees` uses."""
    parser.addoption("--guarantees", type=Path, help="file to write the measurements of the guarantees to")
    parser.addoption("--only-guarantees", default="", help="names of guarantees, comma-separated")


def pytest_configure(config):
    """Begin without measurements."""
    config.stash[_MEASUREMENTS] = []


class _ByModule(LoadFileScheduling):
    """Runs all tests of a module on one worker, so that they share its servers.

    Modules whose tests need port 8100 or 8137 run on one worker too. (pytest-xdist's own groups have no effect with
    pytest 9.2.)
    """

    def _split_scope(self, nodeid):
        module = super()._split_scope(nodeid)
        return "modules that need certain ports" if module in _NEED_PORTS else module


def pytest_xdist_make_scheduler(config, log):
    """Return the scheduler that gives tests to several workers."""
    return _ByModule(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark the tests of some folders, and note which test demonstrates which guarantee.

    A soak test runs only on request, and slow tests run first.
    """
    only = {name for name in config.getoption("only_guarantees").split(",") if name}
    soaking = "soak" in (config.getoption("markexpr") or "") or config.getoption("guarantees")
    kept = []
    for item in items:
        for mark in _OF_FOLDERS.get(item.path.parent.name, ()):
            if item.get_closest_marker(mark.name) is None:
                item.add_marker(mark)
        if reason := _reason_to_skip(item):
            item.add_marker(pytest.mark.skip(reason=reason))
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


def _reason_to_skip(item):
    if not item.path.is_relative_to(Path(__file__).parent):
        return ""
    if "E2E_BASE_URL" in os.environ and (reason := _reason_to_start(item)):
        return reason
    if item.get_closest_marker("uvicorn") and os.environ.get("USE_GRANIAN") == "true":
        return "about uvicorn's protocols; docs/run/deployment.md says what Granian does"
    if item.get_closest_marker("requires_gpu"):
        found = capabilities.probe()
        return "" if found.gpu and found.torch_cuda else "needs an NVIDIA driver and a CUDA build of torch"
    return ""


def _reason_to_start(item):
    """Return why a test cannot use the server at E2E_BASE_URL; "" if it can."""
    if item.get_closest_marker("any_server"):
        return ""
    if not item.get_closest_marker("demo_server") or "start" in item.fixturenames:
        return "starts its own server, and E2E_BASE_URL names one that runs"
    if os.environ.get("E2E_DEMO_SERVER") != "true":
        return "needs the demonstration model and small limits, which E2E_DEMO_SERVER=true states"
    return ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Record the outcome of a test, which is that of its worst phase."""
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
    """The server at `E2E_BASE_URL`, else a process with the demonstration model loaded and small limits."""
    if "E2E_BASE_URL" in os.environ:
        with closing(RunningServer()) as server:
            yield server
        return
    log = tmp_path_factory.mktemp("server") / "log"
    with ready(log, MAX_UPLOAD_MB="4", MAX_AUDIO_S="120") as server:
        yield server


@pytest.fixture(scope="module")
def spoken(server):
    """A recording that the server understands: real speech, unless it has the demonstration model."""
    if server.model == "demo":
        bundled = demo.sample()
        return recordings.Spoken(pcm_of(bundled.recording), recordings.plain_words(bundled.text), errors=0)
    (clip,) = recordings.real_clips("librivox_0920")
    return recordings.Spoken(pcm_of(clip.path), recordings.plain_words(clip.text), errors=1)


@pytest.fixture(scope="session")
def guarded(tmp_path_factory):
    """A running server with two keys, an endpoint for translations and a scripted engine that imitates voices, the
    model loaded, that logs all it ever logs."""
    log = tmp_path_factory.mktemp("guarded") / "log"
    with ScriptedLlm() as llm, ready(log, LOG_LEVEL="TRACE", OPENAI_BASE_URL=llm.base_url, **GUARDED) as server:
        yield server


@pytest.fixture(scope="session")
def speech():
    """The bundled recording and a pause that ends it: int16 at 16 kHz."""
    return np.concatenate([recordings.samples(), np.zeros(14_400, np.int16)])


@pytest.fixture(scope="session")
def talk(speech):
    """The recording and its pause twice."""
    return np.concatenate([speech, speech])


@pytest.fixture(scope="session")
def fake_sample(tmp_path_factory):
    """The settings for a server process that answers the words of the bundled recording, whatever it hears."""
    return fake_model(tmp_path_factory.mktemp("script"), text=recordings.sample()[1])


@pytest.fixture(scope="session")
def sample():
    """The bundled recording and its words."""
    return recordings.sample()
