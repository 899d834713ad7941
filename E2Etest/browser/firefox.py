"""The system's Firefox, headless, over WebDriver BiDi: the protocol is JSON over a WebSocket, and needs no driver."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

_WAIT_S = 60


@contextmanager
def firefox(*, dark: bool) -> Iterator[Callable[[str, dict[str, int], str], Any]]:
    """Return a function that opens an address in a viewport and evaluates an expression or promise there."""
    program = shutil.which("firefox-esr") or shutil.which("firefox")
    if program is None:
        pytest.fail("The tests of the page need a Firefox: apt-get install -y firefox-esr", pytrace=False)
    with tempfile.TemporaryDirectory() as folder:
        # A profile of its own. A browser that is driven from outside asks nobody for updates.
        scheme = f'user_pref("layout.css.prefers-color-scheme.content-override", {0 if dark else 1});'
        Path(folder, "user.js").write_text(scheme, encoding="utf-8")
        command = [program, "--headless", "--no-remote", "--profile", folder, "--remote-debugging-port", "0"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        try:
            said = (re.search(r"WebDriver BiDi listening on (ws://\S+)", line) for line in process.stderr or ())
            with connect(f"{next(filter(None, said))[1]}/session", max_size=None) as socket:
                numbers = itertools.count(1)

                def call(method: str, **parameters: Any) -> Any:
                    number = next(numbers)
                    socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
                    while (message := json.loads(socket.recv(timeout=_WAIT_S))).get("id") != number:
                        pass
                    assert message["type"] == "success", message
                    return message["result"]

                call("session.new", capabilities={})
                context = call("browsingContext.getTree")["contexts"][0]["context"]

                def evaluate(url: str, viewport: dict[str, int], expression: str) -> Any:
                    call("browsingContext.setViewport", context=context, viewport=viewport)
                    call("browsingContext.navigate", context=context, url=url, wait="complete")
                    as_json = f"(async () => JSON.stringify(await ({expression})))()"
                    place = {"target": {"context": context}, "awaitPromise": True}
                    result = call("script.evaluate", expression=as_json, **place)
                    assert result["type"] == "success", result
                    return json.loads(result["result"]["value"])

                yield evaluate
        finally:
            process.terminate()
            process.communicate(timeout=_WAIT_S)
