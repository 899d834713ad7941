"""A body that never ends: refused while it is read, and read no further."""

import select
import socket

import numpy as np
import pytest

from E2Etest.drive import recordings
from E2Etest.drive.process import running
from E2Etest.drive.procfs import bytes_read, family, forget_peak, resident_mb
from E2Etest.drive.wire import END, form, post

pytestmark = pytest.mark.performance

MIB = 1024 * 1024
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def _chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


def _poured(server, size):
    """Send chunks until so many bytes are taken or the connection is cut; what was taken, and the answer."""
    taken, answer, piece = 0, b"", memoryview(_chunk(bytes(64 * 1024)))
    with socket.create_connection(("127.0.0.1", server.port)) as line:
        line.sendall(post(b"", headers=CHUNKED, length=None) + _chunk(form(b"").removesuffix(b"\r\n" + END)))
        line.setblocking(False)
        try:
            while taken < size:
                readable, writable, _ = select.select([line], [line], [], 30)
                assert readable or writable, "the server neither reads nor answers"
                if readable:
                    if not (part := line.recv(65_536)):
                        break
                    answer += part
                elif writable:
                    taken += line.send(piece[taken % len(piece) :])
        except (ConnectionResetError, BrokenPipeError):
            pass
    return taken, answer


@pytest.mark.guarantee("upload-cap")
def test_a_gigabyte_without_a_length(tmp_path, measured, note):
    """413 at the limit that a server has by default; what is read, counted by the kernel, and memory stay within it."""
    with running(tmp_path / "log", IDLE_TIMEOUT="0") as server:
        sound = recordings.wav(np.ones(8_000, np.int16))
        assert server.transcribe(sound, language="nobody's").status_code == 400
        cap = 200 * MIB
        pids = family(server.process.pid)
        before_mb, before = sum(resident_mb(pid) for pid in pids), bytes_read(server.process.pid)
        for pid in pids:
            forget_peak(pid)

        taken, answer = _poured(server, 1024 * MIB)

        assert answer.startswith(b"HTTP/1.1 413 "), answer
        assert b'"file_too_large"' in answer
        past = bytes_read(server.process.pid) - before - cap
        grown_mb = sum(resident_mb(pid, "VmHWM") for pid in pids) - before_mb
        assert past >= 0
        measured("past_mib", past / MIB)
        assert taken < cap + 64 * MIB  # the kernel's own buffers are between
        measured("memory_mib", grown_mb)
        note(f"{past / MIB:.2f} MiB read beyond 200 MiB, memory {grown_mb:+.1f} MiB")
        assert server.transcribe(sound).status_code == 200
