"""A server, a headless Chromium of the system, and pages that are watched for errors and for requests elsewhere."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from E2Etest.drive import recordings
from E2Etest.drive.process import GUARDED

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = """The tests of the page need a Chromium. Install one and run again:
    apt-get install -y chromium          (Debian, Ubuntu)
Any of these on the PATH will do: """ + ", ".join(NAMES)
# Generous: the machine may be busy, and nothing here measures time.
WAIT_MS = 60_000
DESK = {"width": 1180, "height": 820}
PHONE = {"width": 390, "height": 844}
MICROPHONE = ("--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream")
FINALS = "#live-lines li:not(.open) p"
# A module of the page, which has one script with all of them: `await pageModule("store.js")`.
PAGE_MODULE = "window.pageModule = name => import(document.scripts[0].src).then(page => page.need(name));"


@dataclass
class Watched:
    """A page and what went wrong on it. A test that provokes failures lists what it expects in `allowed`."""

    page: Page
    base: str
    errors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)
    allowed: list[str] = field(default_factory=list)

    def listen(self) -> None:
        """Note errors and hosts from now on."""
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self._note(request.url))
        self.page.on("websocket", lambda socket: self._note(socket.url))

    def _note(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"blob", "data"}:
            self.hosts.add(parts.netloc)

    def check(self) -> None:
        """No error that the test did not provoke, no other host."""
        assert [e for e in self.errors if not any(a in e for a in self.allowed)] == []
        assert self.hosts <= {urlsplit(self.base).netloc}


@pytest.fixture(scope="package")
def chromium():
    """The path of the system's Chromium; without one the tests fail, since passing would say that the page works."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.fail(MISSING, pytrace=False)
    return found


@pytest.fixture(scope="package")
def playwright(chromium):
    """The driver; no browser is downloaded. It keeps an event loop running in this thread, so it ends here."""
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as driver:
        yield driver


@pytest.fixture(scope="package")
def page_server(start):
    """A server with a small upload limit and its fake model loaded, which answers to the name asr.test too."""
    with start(MAX_UPLOAD_MB="4", ALLOWED_ORIGINS="http://asr.test", PRELOAD="true", IDLE_TIMEOUT="0") as server:
        server.wait_for(lambda health: health["model_loaded"])
        yield server


@pytest.fixture(scope="package")
def guarded(start):
    """Start a server with two keys that drops a session one second after its client leaves."""
    with start(API_KEYS=GUARDED["API_KEYS"], WS_RESUME_S="1") as server:
        yield server


@pytest.fixture(scope="package")
def launch(playwright, chromium):
    """Start a browser whose microphone plays a WAV file once, or that refuses the microphone."""

    @contextmanager
    def start(*arguments: str):
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", *arguments])
        try:
            yield browser
        finally:
            browser.close()

    return start


@contextmanager
def opened(browser: Browser, base: str, panel: str = "live", **context):
    """A watched page; its findings are checked at the end. It has no service worker: requests would hide behind it."""
    with browser.new_context(**({"viewport": DESK, "service_workers": "block"} | context)) as made:
        made.set_default_timeout(WAIT_MS)
        made.add_init_script(PAGE_MODULE)
        watched = Watched(made.new_page(), base)
        watched.listen()
        watched.page.goto(f"{base}/#{panel}")
        yield watched
        watched.check()


def file(name: str, content: bytes) -> dict[str, str | bytes]:
    """Return a file in the form that `set_input_files` takes."""
    return {"name": name, "mimeType": "audio/wav", "buffer": content}


@pytest.fixture(scope="module")
def browser(launch):
    """Open one browser for the tests of a module, with Chromium's artificial microphone."""
    with launch(*MICROPHONE) as made:
        yield made


@pytest.fixture
def speaking(launch, tmp_path):
    """Start a browser into whose microphone the bundled recording is spoken, `times` over, with pauses between."""

    @contextmanager
    def start(times: int = 1, quiet_s: float = 1.2):
        pause = np.zeros(int(16_000 * quiet_s), np.int16)
        spoken = np.concatenate([pause, *(part for _ in range(times) for part in (recordings.samples(), pause))])
        path = tmp_path / "spoken.wav"
        path.write_bytes(recordings.wav(spoken))
        with launch(*MICROPHONE, f"--use-file-for-fake-audio-capture={path}%noloop") as browser:
            yield browser

    return start
