"""The system's Firefox, headless, over WebDriver BiDi: the protocol is JSON over a WebSocket, and needs no driver."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

NAMES = ("firefox-esr", "firefox")
_WAIT_S = 60
# A profile of its own, which asks nobody for updates. The colour scheme is 0 for dark and 1 for light.
_PREFERENCES = {
    "layout.css.prefers-color-scheme.content-override": 1,
    "app.update.enabled": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "browser.safebrowsing.malware.enabled": False,
    "browser.safebrowsing.phishing.enabled": False,
}


class Firefox:
    """One window of it."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self.call("session.new", capabilities={})
        self._context = self.call("browsingContext.getTree")["contexts"][0]["context"]

    def call(self, method: str, **parameters: Any) -> Any:
        """The result of a command. Raises `RuntimeError` with Firefox's own words."""
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=_WAIT_S))
            if message.get("id") == number:
                break
        if message["type"] == "error":
            raise RuntimeError(f"{method}: {message['error']}: {message['message']}")
        return message["result"]

    def open(self, url: str, width: int, height: int) -> None:
        """Load a page in a viewport of this size."""
        size = {"width": width, "height": height}
        self.call("browsingContext.setViewport", context=self._context, viewport=size)
        self.call("browsingContext.navigate", context=self._context, url=url, wait="complete")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression or its promise, as JSON gives it."""
        result = self.call(
            "script.evaluate",
            expression=f"(async () => JSON.stringify(await ({expression})))()",
            target={"context": self._context},
            awaitPromise=True,
        )
        if result["type"] == "exception":
            raise RuntimeError(result["exceptionDetails"]["text"])
        value = result["result"].get("value")
        return None if value is None else json.loads(value)

    def run(self, script: str) -> None:
        """Run a script in the page."""
        self.call("script.evaluate", expression=f"{script}\n;0", target={"context": self._context}, awaitPromise=False)


def found() -> str | None:
    """The path of the program."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def running(program: str, *, dark: bool = False) -> Iterator[Firefox]:
    """A Firefox of its own."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = _PREFERENCES | {"layout.css.prefers-color-scheme.content-override": 0 if dark else 1}
        lines = (f'user_pref("{name}", {json.dumps(value)});' for name, value in chosen.items())
        Path(folder, "user.js").write_text("\n".join(lines), encoding="utf-8")
        command = [program, "--headless", "--no-remote", "--profile", folder, "--remote-debugging-port", "0"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        try:
            with connect(f"{_address(process)}/session", max_size=None) as socket:
                yield Firefox(socket)
        finally:
            process.terminate()
            process.communicate(timeout=_WAIT_S)


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if match := re.search(r"WebDriver BiDi listening on (ws://\S+)", line):
            return match[1]
    raise RuntimeError("Firefox ended before it listened")
