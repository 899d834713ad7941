"""Two servers, and a headless Chromium of the system for the tests of all modules."""

import shutil

import numpy as np
import pytest
from playwright.sync_api import expect, sync_playwright

from asr_server.features.translation.conftest import ScriptedLlm
from asr_server_fake.script import FakeScript
from E2Etest.browser.looking import looked_at
from E2Etest.browser.person import WAIT_MS
from E2Etest.drive import recordings
from E2Etest.drive.process import GUARDED

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MICROPHONE = "--use-fake-device-for-media-stream"
ALLOWED = "--use-fake-ui-for-media-stream"


@pytest.fixture(scope="package")
def launch():
    """Start a browser with these arguments; without one the tests fail, since passing would say that the page works.

    No browser is downloaded. The driver keeps an event loop running in this thread, so it ends here.
    """
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.fail("The tests of the page need a Chromium: apt-get install -y chromium", pytrace=False)
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as driver:
        yield lambda *given: driver.chromium.launch(executable_path=found, args=["--no-sandbox", MICROPHONE, *given])


@pytest.fixture(scope="package")
def browser(launch):
    """One browser for all tests, with Chromium's artificial microphone."""
    with launch(ALLOWED) as made:
        yield made


@pytest.fixture(scope="package")
def speaking(launch, tmp_path_factory):
    """A browser into whose microphone the bundled recording is spoken eight times, from when a page opens it."""
    pause = np.zeros(19_200, np.int16)
    path = tmp_path_factory.mktemp("microphone") / "spoken.wav"
    path.write_bytes(recordings.wav(np.concatenate([pause, *[recordings.samples(), pause] * 8])))
    with launch(ALLOWED, f"--use-file-for-fake-audio-capture={path}%noloop") as made:
        yield made


@pytest.fixture(scope="package")
def page_server(start):
    """A server that translates, with a small upload limit and its fake model loaded. Its other name is asr.test."""
    settings = {
        "MAX_UPLOAD_MB": "4",
        "MAX_BATCH": "1",
        "PRELOAD": "true",
        "IDLE_TIMEOUT": "0",
        "ALLOWED_ORIGINS": "http://asr.test",
    }
    with ScriptedLlm() as llm, start(OPENAI_BASE_URL=llm.base_url, TRANSLATE_MODEL="scripted", **settings) as server:
        server.wait_for(lambda health: health["model_loaded"])
        yield server


@pytest.fixture
def scripted(page_server):
    """A function that gives the engine of `page_server` another script, until the end of the test."""
    yield lambda **script: page_server.replace_script(FakeScript(**script))
    page_server.replace_script(FakeScript())


@pytest.fixture(scope="package")
def guarded(start):
    with start(API_KEYS=GUARDED["API_KEYS"]) as server:
        yield server


@pytest.fixture(params=[pytest.param(False, id="day"), pytest.param(True, id="looked", marks=pytest.mark.nightly)])
def look(request):
    """A function that looks at the page as it is, in all sizes and colours. By day it does nothing."""
    return looked_at if request.param else lambda *_: None
