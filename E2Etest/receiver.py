"""A receiver of webhooks, which checks signatures as the specification of Standard Webhooks tells it to."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = bytes(range(32))
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"


class Receiver:
    """The callbacks that have arrived."""

    def __init__(self) -> None:
        self.messages: list[dict] = []  # in the order in which they came, with their ids
        self.paths: list[str] = []
        self.url = ""

    def settings(self) -> dict[str, str]:
        """Return those of a server that may send here."""
        return {
            "WEBHOOK_HOSTS": "127.0.0.1",
            "WEBHOOK_SECRET": SECRET,
        }

    def take(self, path: str, headers: dict[str, str], body: bytes) -> int:
        """Keep a request, and return the status of its answer. A message without a valid signature gets 401."""
        self.paths.append(path)
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        expected = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
        is_recent = abs(int(headers["webhook-timestamp"]) - time.time()) < 300
        if not (is_recent and f"v1,{expected}" in headers["webhook-signature"].split()):
            return 401
        self.messages.append({"webhook-id": headers["webhook-id"], **json.loads(body)})
        return 204


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver at a free port of this machine."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            status = receiver.take(self.path, headers, self.rfile.read(int(headers["content-length"])))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as site:
        receiver.url = f"http://127.0.0.1:{site.server_port}"
        thread = threading.Thread(target=site.serve_forever)
        thread.start()
        try:
            yield receiver
        finally:
            site.shutdown()
            thread.join()
