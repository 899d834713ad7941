"""The decoders' parent: imports libav once, then forks one locked-in child per file; never reads a caller's byte.

Run as `python -m asr_server.audio.fork_server` with a SEQPACKET socket as standard input; see `wire` for the messages,
`child` for what a child does. It has one thread and one loop. Hanging up is the whole control protocol: a server that
closes its end of a job's pipe gets that child killed, a server that closes the socket (or dies) ends everything.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import warnings
from dataclasses import dataclass

import av
import av.subtitles.codeccontext  # PyAV imports these two at the first file with subtitles, when nothing can be opened
import av.subtitles.stream
import numpy as np

from asr_server.audio import child
from asr_server.audio.wire import JOB_BYTES

_QUIET_MS = 20  # without a spare: how long no job may come or go before one is forked beside running jobs


def main() -> None:
    """Serve jobs from standard input until the server hangs up."""
    control = socket.socket(fileno=0)
    _silence()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which drains first
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")  # short of memory, the kernel should take this process, not the server
    child.warm_up()
    gc.collect()
    gc.freeze()  # keeps the children's collections from touching, and so copying, our pages
    ChildPool(control).serve()
    os._exit(0)


def _silence() -> None:
    """From here on nothing is printed: what libav says about a file holds pieces of it. Failed imports were seen."""
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    av.logging.set_level(None)
    null_fd = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_fd, 2)
    os.close(null_fd)


@dataclass(frozen=True, slots=True)
class SpareChild:
    """A child that waits for its job on the other end of `orders`."""

    pid: int
    orders: socket.socket


class ChildPool:
    """The children of one zygote, from fork to reaping.

    One spare child is kept ready: fork, page faults and warm-up cost 10 ms, the job then 2 ms (3 s WAV). A new one is
    forked once no job runs, or none has come or gone for a while: forking beside a short job delayed it by 2.5 ms.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._spare: SpareChild | None = None
        self._out_fds: dict[int, int] = {}  # pid of a working child: our copy of its pipe's write end
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._ended, self._wake = socket.socketpair()
        self._ended.setblocking(False)
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._poll.register(self._ended, select.POLLIN)

    def serve(self) -> None:
        """Until the control socket ends; all children then die with this process."""
        while True:
            if self._spare is None and not self._out_fds:
                self._spare = self._fork()
            events = self._poll.poll(None if self._spare else _QUIET_MS)
            if not events:
                self._spare = self._fork()
            for fd, _ in events:
                if fd == self._control.fileno():
                    if not self._hand_over():
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
            child.live(theirs, parent_pid)
        theirs.close()
        return SpareChild(pid, ours)

    def _hand_over(self) -> bool:
        """One job to a spare; False if the server is gone."""
        message, fds, _, _ = socket.recv_fds(self._control, JOB_BYTES, 2)
        if not message or len(fds) != 2:
            return False
        source_fd, out_fd = fds
        self._out_fds[self._pass_on(message, fds)] = out_fd
        os.close(source_fd)
        self._poll.register(out_fd, 0)  # an empty mask still reports POLLERR: nobody reads the pipe any more
        return True

    def _pass_on(self, message: bytes, fds: list[int]) -> int:
        """Give the job to the spare, or to a new child if there is none alive; returns the pid."""
        while True:
            spare = self._spare or self._fork()
            self._spare = None
            with contextlib.suppress(BrokenPipeError), spare.orders:
                socket.send_fds(spare.orders, [message], fds)
                return spare.pid

    def _kill_unread(self, out_fd: int) -> None:
        for pid, fd in self._out_fds.items():  # without it if the child ended, and was reaped, in the same round
            if fd == out_fd:
                self._poll.unregister(out_fd)
                os.kill(pid, signal.SIGKILL)  # not reaped yet, so the number is still its own

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._ended.recv(4096)
        with contextlib.suppress(ChildProcessError):
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                self._bury(pid)

    def _bury(self, pid: int) -> None:
        if self._spare is not None and self._spare.pid == pid:
            self._spare.orders.close()
            self._spare = None
        out_fd = self._out_fds.pop(pid, None)
        if out_fd is not None:
            with contextlib.suppress(KeyError):
                self._poll.unregister(out_fd)
            os.close(out_fd)  # the last write end: a child that died without an outcome is now seen by the server


if __name__ == "__main__":
    main()
