"""The faults of the soak: what callers, networks, codecs and operators do to a server, and what must come of each."""

from __future__ import annotations

import os
import signal
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

from asr_server.client.live import LiveClient
from E2Etest.chaos import bombs
from E2Etest.chaos.soak_traffic import HANG_S, PAUSE, Unexpected
from E2Etest.drive import recordings
from E2Etest.drive.process import ServerProcess
from E2Etest.drive.procfs import decoder_at_work
from E2Etest.drive.session import data, pieces
from E2Etest.drive.wire import END, form, post

UPLOAD_MB = 8
_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: a close is a reset, as of a process that was killed
_HOURS = bombs.opus(7_000)  # silence: nothing for the model, seconds of work for a decoder
_PATH = "/v1/audio/transcriptions/stream"


class Faults:
    """Each method is one fault; it returns when it is over, and raises `Unexpected` for a wrong end."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._body = form(recordings.sample()[0], model="demo")

    def killed_client(self) -> None:
        """A caller dies in the middle of its upload."""
        with self._connected() as line:
            line.sendall(post(b"", path=_PATH, length=len(self._body)) + self._body[: len(self._body) // 2])
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)

    def cut_socket(self) -> None:
        """A live connection breaks three times in the middle of speech, and is resumed."""
        spoken, texts = data(recordings.samples()) + data(PAUSE), {}
        with LiveClient(self._server.base) as client:
            for piece in pieces(spoken, len(spoken) // 4):
                client.send(piece)
                client.cut()
                client.resume()
            client.flush()
            for line in client.lines(wait_s=HANG_S):
                texts[line.utterance] = line.text
                if line.ending == "flush":
                    break
        _expect(" ".join(filter(None, texts.values())), recordings.sample()[1])

    def killed_decoder(self) -> None:
        """The decoder of a long recording is killed at work."""
        with ThreadPoolExecutor(1) as pool:
            hurt = pool.submit(self._server.transcribe, _HOURS)
            os.kill(decoder_at_work(self._server), signal.SIGKILL)
            _expect(hurt.result().status_code, 400)

    def garbage(self) -> None:
        """Send random bytes under the name of a recording."""
        _expect(self._server.transcribe(os.urandom(100_000)).status_code, 400)

    def oversize(self) -> None:
        """More than is taken, with and without its length."""

        def parts():
            yield form(b"").removesuffix(b"\r\n" + END)
            for _ in range(UPLOAD_MB + 1):
                yield bytes(2**20)

        media_type = {"Content-Type": "multipart/form-data; boundary=b"}
        untold = self._server.client.post("/v1/audio/transcriptions", content=parts(), headers=media_type)
        _expect((self._server.transcribe(bytes((UPLOAD_MB + 1) * 2**20)).status_code, untold.status_code), (413, 413))

    def slow_reader(self) -> None:
        """A caller that takes its answer in drops, for ten seconds."""
        with self._connected() as line:
            line.sendall(post(self._body, path=_PATH))
            answer = b""
            while piece := line.recv(16):
                answer += piece
                time.sleep(0.2)
            _expect(recordings.sample()[1].encode() in answer, True)

    def stopped_server(self) -> None:
        """The whole process stands still for two seconds."""
        os.kill(self._server.process.pid, signal.SIGSTOP)
        try:
            time.sleep(2.0)
        finally:
            os.kill(self._server.process.pid, signal.SIGCONT)

    def _connected(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._server.port), timeout=HANG_S)


FAULTS = ("killed_client", "cut_socket", "killed_decoder", "garbage", "oversize", "slow_reader", "stopped_server")


def _expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise Unexpected(f"{found!r} in place of {wanted!r}")
