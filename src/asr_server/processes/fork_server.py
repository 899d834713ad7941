"""The fork server: imports a module once, then forks one sandboxed child for each request; reads no request itself.

Run as `python -m asr_server.processes.fork_server MODULE` with a SEQPACKET socket as standard input. A request is one
message with two descriptors attached: the file that a child may read, and the write end of a pipe for its answer.
MODULE has `warm_up()`, which opens and imports what a request needs and is called here and again in each child, and
`run(request, source_fd, out_fd)`, which locks the sandbox and answers. The process has one thread and one loop. Closing
is the whole control protocol: when the server closes its end of a request's pipe, that child is killed; when the server
closes the socket (or dies), all children are.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import socket
import sys
import time
import warnings
from dataclasses import dataclass
from types import ModuleType

from asr_server.processes import sandbox

_REQUEST_BYTES = 1024  # a request message is shorter
_QUIET_MS = 20  # without a spare child, one is forked after this long without a request or an exit
# Beyond this CPU time a request gives way to shorter ones, to the engine and to the rest of the server.
_LONG_CPU_S = 0.5
_LONG_NICENESS = 5
_LOOK_MS = 250


def main() -> None:
    """Serve requests from standard input until the server closes the socket."""
    control = socket.socket(fileno=0)
    child = importlib.import_module(sys.argv[1])
    # Discard stderr from here on: messages may quote the file. Errors of the import above were still printed.
    warnings.simplefilter("ignore")
    null_fd = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_fd, 2)
    os.close(null_fd)
    sandbox.give_way()
    child.warm_up()
    sandbox.freeze()
    ChildPool(control, child).serve()
    os._exit(0)


@dataclass(frozen=True, slots=True)
class SpareChild:
    """A child that waits for its request."""

    pid: int
    requests: socket.socket  # the other end is the child's


class ChildPool:
    """The children of the fork server, from fork to reaping.

    One spare child is kept ready: fork, page faults and warm-up take 10 ms, and decoding a WAV of 3 s then only 2 ms.
    The next spare is forked when no request runs, or when none has begun or ended for a while: forking delays a short
    request that runs at the same time by 2.5 ms.
    """

    def __init__(self, control: socket.socket, child: ModuleType) -> None:
        self._control = control
        self._child = child
        self._spare: SpareChild | None = None
        self._out_fds: dict[int, int] = {}  # pid of a child at work: this process's copy of its pipe's write end
        self._short: set[int] = set()  # children at work that did not take long when last checked
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
            # Returns no event when it is quiet enough to fork a spare, or time to check the children's CPU time.
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
        pid = sandbox.fork(lambda parent_pid: self._run_child(theirs, parent_pid))
        theirs.close()  # else the child's death would not end the socket
        return SpareChild(pid, ours)

    def _run_child(self, requests: socket.socket, parent_pid: int) -> None:
        # Everything that needs descriptors, privileges or imports happens before the caller's file arrives: after
        # `sandbox.lock` nothing can be opened any more.
        sandbox.prepare((requests.fileno(),), parent_pid)
        self._child.warm_up()  # copies each page at its first write: 4 ms in all, now that nobody waits
        message, fds, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 2)
        if message:  # empty: the fork server closed its end without a request
            requests.close()
            self._child.run(message, *fds)

    def _accept(self) -> bool:
        """Pass one request on to a child. Return False if the server is gone."""
        message, fds, _, _ = socket.recv_fds(self._control, _REQUEST_BYTES, 2)
        if not message or len(fds) != 2:
            return False
        source_fd, out_fd = fds
        # This process keeps its copy of the write end, to notice when the server closes the read end.
        pid = self._send_to_child(message, fds)
        self._out_fds[pid] = out_fd
        self._short.add(pid)
        os.close(source_fd)  # the child has a copy
        self._poll.register(out_fd, 0)  # an empty mask still reports POLLERR: the read end is closed
        return True

    def _send_to_child(self, message: bytes, fds: list[int]) -> int:
        """Send the request to the spare child, or to a new one if the spare died or there is none. Return the pid."""
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
        # Reap until no ended child is left: one byte may stand for several children, whose signals were merged.
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
    """Return the CPU time of a child that is not reaped yet (proc(5): fields 14 and 15 of its line)."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


if __name__ == "__main__":
    main()
