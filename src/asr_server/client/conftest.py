"""Scripted servers: of `WS /ws/transcribe`, with a script for each connection, and of answers over HTTP."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve

WAIT_S = 20


def text(utterance, committed, tentative="", *, end=1.0, ending=""):
    """Return a text message; it is a final if it has an ending."""
    final = {"ending": ending} if ending else {}
    fields = {"utterance": utterance, "committed": committed, "tentative": tentative, "is_final": bool(ending), **final}
    return {**fields, "text": committed + tentative, "language": "English", "start": 0.0, "end": end, "lag_ms": 1}


class Side:
    """The server's side of a connection. Received frames are recorded only while `hear` or `end` runs."""

    def __init__(self, socket):
        self._socket = socket
        self.path = socket.request.path
        self.audio, self.actions, self.texts = bytearray(), [], []

    def say(self, *messages):
        for message in messages:
            self._socket.send(json.dumps(message))

    def hello(self, received_bytes=None, actions=0, **more):
        """Send the first message: of a new session, or of one resumed after this many bytes and actions."""
        if received_bytes is not None:
            more = {"resumed": True, "received_bytes": received_bytes, "actions": actions, **more}
        self.say({"status": "connected", "session_id": "live_1", **more})

    def refuse(self, code):
        self.say({"error": {"message": "No.", "code": code}, "code": code})

    def hear(self, size=0, actions=0):
        """Wait until this many bytes and actions have arrived."""
        while len(self.audio) < size or len(self.actions) < actions:
            self._take(self._socket.recv(timeout=WAIT_S))

    def close(self, code):
        self._socket.close(code)

    def break_off(self):
        """Break the connection, as a server that dies would."""
        self._socket.close_socket()

    def end(self):
        """Wait until the client has ended the connection. Returns its close code."""
        try:
            while True:
                self._take(self._socket.recv(timeout=WAIT_S))
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd else None

    def _take(self, frame):
        if isinstance(frame, bytes):
            self.audio += frame
        else:
            self.texts.append(frame)
            self.actions.append((len(self.audio), json.loads(frame)["action"]))


def says(*messages, code=None, **hello):
    """Return the script of a server that sends these messages at once, then closes with the code if there is one."""

    def script(side):
        side.hello(**hello)
        side.say(*messages)
        side.end() if code is None else side.close(code)

    return script


@contextmanager
def servers(*scripts):
    """Serve each connection with the next script. An assertion that fails in a script fails the test."""
    waiting, ended, failures = list(scripts), threading.Semaphore(0), []

    def talk(socket):
        script = waiting.pop(0)
        try:
            script(Side(socket))
        except BaseException as failure:
            failures.append(failure)
            raise
        finally:
            ended.release()

    with serve(talk, "127.0.0.1", 0, max_size=None) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
            for _ in scripts:
                assert ended.acquire(timeout=WAIT_S)
        finally:
            server.shutdown()
            thread.join()
    assert not failures


class _Seen(list):
    """The bodies of requests, and their `headers`."""


@contextmanager
def answering(body, status=200, *, before=(), **headers):
    """Serve these bytes as the answer. Yields the address, and the bodies and headers received. `before`: the statuses
    of the first answers, None for a connection that is closed instead."""
    seen, statuses = _Seen(), list(before)
    seen.headers = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            seen.append(self._body())
            seen.headers.append(self.headers)
            self.do_GET()

        def do_GET(self):
            if (code := statuses.pop(0) if statuses else status) is None:
                self.close_connection = True
                return
            self.send_response(code)
            own = {name.replace("_", "-"): value for name, value in headers.items()}
            for name, value in {"Content-Length": str(len(body)), "Connection": "close", **own}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def _body(self):
            if "Content-Length" in self.headers:
                return self.rfile.read(int(self.headers["Content-Length"]))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", seen
        finally:
            server.shutdown()
            thread.join()
