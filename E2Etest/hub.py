"""A hub on this machine that has the bundled checkpoint as `o/model`, with a second format of its weights."""

import hashlib
import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from asr_server import demo

COMMIT = "a" * 40
# The client writes 10 MB at a time.
OTHER, OTHER_BYTES, PIECES = "pytorch_model.bin", 48_000_000, 120
FILES = {path.name: path for path in demo.checkpoint_path().iterdir()}


@contextmanager
def hub(pause_s=0.0):
    """Yield the hub's address; `pause_s`: between the pieces of the second format."""

    class Handler(_Hub):
        pause = pause_s

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class _Hub(BaseHTTPRequestHandler):
    """The part of the hub's protocol that its clients before and after 1.0 download with."""

    def do_HEAD(self):
        """Answer what the client asks before it downloads a file."""
        self._send(self._length())

    def do_GET(self):
        """Send the list of the files in either form, or one of them."""
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/o/model/revision/"):
            self._json({"id": "o/model", "sha": COMMIT, "siblings": [{"rfilename": n} for n in (OTHER, *FILES)]})
        elif path.startswith("/api/models/o/model/tree/"):
            sizes = {OTHER: OTHER_BYTES, **{name: file.stat().st_size for name, file in FILES.items()}}
            self._json([{"type": "file", "oid": COMMIT, "path": name, "size": size} for name, size in sizes.items()])
        elif path.endswith(f"/{OTHER}"):
            self._send(OTHER_BYTES)
            for _ in range(PIECES):
                time.sleep(self.pause)
                self.wfile.write(bytes(OTHER_BYTES // PIECES))
        else:
            self._send(self._length())
            self.wfile.write(self._file().read_bytes())

    def _file(self):
        return FILES[self.path.rpartition("/")[2]]

    def _length(self):
        return OTHER_BYTES if self.path.endswith(f"/{OTHER}") else self._file().stat().st_size

    def _json(self, content):
        body = json.dumps(content).encode()
        self._send(len(body))
        self.wfile.write(body)

    def _send(self, length):
        self.send_response(200)
        self.send_header("Content-Length", str(length))
        self.send_header("ETag", f'"{hashlib.sha256(self.path.encode()).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()

    def log_message(self, *_):
        """Nothing."""
