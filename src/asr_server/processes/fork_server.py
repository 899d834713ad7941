"""The fork server: imports libav once, then forks one sandboxed child for each file; reads no byte of a file itself.

Run as a module with a SEQPACKET socket as standard input; see `audio/decoder_wire.py` for the messages, and
`audio/decoder_child.py` for what a child does. It has one thread and one loop. Closing is the whole control protocol:
when the server closes its end of a request's pipe, that child is killed; when the server closes the socket (or dies),
all of them.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import time
import warnings
from dataclasses import dataclass

import av
import av.subtitles.codeccontext  # PyAV imports these two at the first file with subtitles, when nothing can be opened
import av.subtitles.stream
import numpy as np

from asr_server.audio import decoder_child as child
from asr_server.audio.decoder_wire import REQUEST_BYTES

_QUIET_MS = 20  # without a spare child: this long without a request or an exit, then one is forked
# Beyond this CPU time a decode gives way to shorter ones, to the engine and to the rest of the server.
_LONG_CPU_S = 0.5
_LONG_NICENESS = 5
_LOOK_MS = 250


def main() -> None:
    """Serve requests from standard input until the server closes the socket."""
    control = socket.socket(fileno=0)
    _print_nothing()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which drains first
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")  # short of memory, the kernel kills this process rather than the server
    child.warm_up()
    gc.collect()
    gc.freeze()  # a collection in a child would touch, and so copy, the pages that it shares with this process
    ChildPool(control).serve()
    os._exit(0)


def _print_nothing() -> None:
    """Close the output from here on: libav's messages quote the file. Errors of the imports above were still
    printed."""
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    av.logging.set_level(None)
    null_fd = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_fd, 2)
    os.close(null_fd)


@dataclass(frozen=True, slots=True)
class SpareChild:
    """A child that waits for its request."""

    pid: int
    requests: socket.socket  # the other end is the child's


class ChildPool:
    """The children of the fork server, from fork to reaping.

    One spare child is kept ready: fork, page faults and warm-up take 10 ms, the decode then 2 ms (3 s WAV). The next
    one is forked when no decode runs, or when none began or ended for a while: forking delays a short decode that runs
    at the same time by 2.5 ms.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._spare: SpareChild | None = None
        self._out_fds: dict[int, int] = {}  # pid of a decoding child: this process's copy of its pipe's write end
        self._short: set[int] = set()  # decoding children that have not been seen to take long
        self._look_at_s = 0.0
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        # SIGCHLD must wake `poll` and must not be lost if it comes just before. Python's handler writes a byte to
        # `_wake`, which makes `_ended` readable; the signal itself needs no other handling.
        self._ended, self._wake = socket.socketpair()
        self._ended.setblocking(False)
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._poll.register(self._ended, select.POLLIN)

    def serve(self) -> None:
        """Run until the server closes the control socket. The children die with this process."""
        while True:
            if self._spare is None and not self._out_fds:
                self._spare = self._fork()
            events = self._poll.poll(_QUIET_MS if self._spare is None else _LOOK_MS if self._short else None)
            if not events and self._spare is None:
                self._spare = self._fork()
            self._lower_priorities()
            for fd, _ in events:
                if fd == self._control.fileno():
                    if not self._accept():
                        return
                elif fd == self._ended.fileno():
                    self._reap()
                else:
                    self._kill_unread(fd)

    def _fork(self) -> SpareChild:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            child.run(theirs, parent_pid)
        theirs.close()  # else the child's death would not end the socket
        return SpareChild(pid, ours)

    def _accept(self) -> bool:
        """Pass one request on to a child; False if the server is gone."""
        message, fds, _, _ = socket.recv_fds(self._control, REQUEST_BYTES, 2)
        if not message or len(fds) != 2:
            return False
        source_fd, out_fd = fds
        # This process keeps its copy of the write end, to notice when the server closes the read end.
        pid = self._send_to_child(message, fds)
        self._out_fds[pid] = out_fd
        self._short.add(pid)
        os.close(source_fd)
        self._poll.register(out_fd, 0)  # an empty mask still reports POLLERR: the read end is closed
        return True

    def _send_to_child(self, message: bytes, fds: list[int]) -> int:
        """Send the request to the spare child, or to a new one if that died or there is none; returns the pid."""
        while True:
            spare = self._spare or self._fork()
            self._spare = None
            with contextlib.suppress(BrokenPipeError), spare.requests:
                socket.send_fds(spare.requests, [message], fds)
                return spare.pid

    def _lower_priorities(self) -> None:
        if time.monotonic() < self._look_at_s:
            return
        self._look_at_s = time.monotonic() + _LOOK_MS / 1000
        for pid in [pid for pid in self._short if _cpu_s(pid) > _LONG_CPU_S]:
            self._short.discard(pid)
            with contextlib.suppress(OSError):  # root without CAP_SYS_NICE may not do this to a child that is nobody
                os.setpriority(os.PRIO_PROCESS, pid, _LONG_NICENESS)

    def _kill_unread(self, out_fd: int) -> None:
        for pid, fd in self._out_fds.items():  # no match if the child was reaped earlier in the same round of events
            if fd == out_fd:
                self._poll.unregister(out_fd)
                os.kill(pid, signal.SIGKILL)  # safe: a pid is not given to another process before it is reaped

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._ended.recv(4096)
        with contextlib.suppress(ChildProcessError):
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                self._forget(pid)

    def _forget(self, pid: int) -> None:
        if self._spare is not None and self._spare.pid == pid:
            self._spare.requests.close()
            self._spare = None
        self._short.discard(pid)
        out_fd = self._out_fds.pop(pid, None)
        if out_fd is not None:
            with contextlib.suppress(KeyError):
                self._poll.unregister(out_fd)
            os.close(out_fd)  # the last write end: the server now sees that a child died without an outcome


def _cpu_s(pid: int) -> float:
    """Return the CPU time of a child that was not reaped yet (proc(5): fields 14 and 15 of its line)."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


if __name__ == "__main__":
    main()
