"""The limits and the system call filter of a child process, set before it reads a caller's bytes.

Three layers, so that no single one is trusted: resource limits (memory, CPU, no new descriptor), no privileges (root
becomes nobody, gains no new ones, dies with its parent) and a system call filter: calls that are missing from `_CALLS`
fail with EPERM, so even an exploited decoder can open, connect, signal, trace and execute nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import itertools
import math
import os
import platform
import resource
import signal
import struct
from collections.abc import Callable

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38  # linux/prctl.h
_PR_GET_SECCOMP = 21
_SECCOMP_MODE_FILTER = 2
_NOBODY = 65_534
_CLOSE_UP_TO = 65_536

# Numbers of the allowed calls, from asm/unistd_64.h: read, write, close, fstat, lseek, mmap, mprotect, munmap, brk,
# rt_sigaction, rt_sigprocmask, rt_sigreturn, pread64, sched_yield, mremap, madvise, getpid, exit, futex,
# sched_getaffinity, clock_gettime, exit_group, getrandom, gettimeofday, setitimer.
_X86_64 = (0, 1, 3, 5, 8, 9, 10, 11, 12, 13, 14, 15, 17, 24, 25, 28, 39, 60, 202, 204, 228, 231, 318, 96, 38)
_AARCH64 = (63, 64, 57, 80, 62, 222, 226, 215, 214, 134, 135, 139, 67, 124, 216, 233, 172, 93, 98, 123, 113, 94, 278)
_CALLS = {  # machine: (audit arch, from linux/audit.h; allowed calls)
    "x86_64": (0xC000_003E, _X86_64),
    "aarch64": (0xC000_00B7, (*_AARCH64, 169, 103)),
}
_libc = ctypes.CDLL(None, use_errno=True)


def filters_calls() -> bool:
    """True if there is a system call filter for this machine, and the kernel supports filters. If not, a decode is
    confined only by its limits and by its lack of privileges."""
    return bool(_FILTER) and _libc.prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) >= 0


def give_way() -> None:
    """Leave Ctrl-C to the server, which drains first, and be the first process that the kernel kills if memory is
    short. Called first of all."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")


def freeze() -> None:
    """Exempt loaded objects from garbage collection, which in a child would touch, and so copy, the shared pages."""
    gc.collect()
    gc.freeze()


def fork(run: Callable[[int], None]) -> int:
    """Fork a child and return its process id. The child calls `run` with the id of its parent, and exits with 0, or
    with 1 if `run` raises."""
    parent_pid = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        run(parent_pid)
        code = 0
    finally:
        # Skip the clean-up of the interpreter, which is the parent's: this process is a copy of its memory. The end of
        # the process closes its pipe: if the pipe then lacks an answer, the child died.
        os._exit(code)


def prepare(keep_fds: tuple[int, ...], parent_pid: int) -> None:
    """Close all descriptors except `keep_fds`, drop privileges, die with the parent. Called before the caller's file
    arrives.

    Steps that the kernel or the container does not support are left out.
    """
    for low, high in itertools.pairwise([-1, *sorted(keep_fds), _CLOSE_UP_TO]):
        if low + 1 < high:  # closerange(0, 0) wraps around to all of them
            os.closerange(low + 1, high)
    _become_nobody()
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # after the change of user, which clears it
    if os.getppid() != parent_pid:
        os._exit(1)  # the parent died before the call above: its death sends no signal any more
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def lock(memory_bytes: int, cpu_s: float) -> None:
    """Set limits and filter, which cannot be lifted again. Called after the file arrived and before its first byte is
    read.

    `memory_bytes` comes on top of the present address space. Raises OSError if the limits cannot be set; the filter is
    left out if the kernel has none.
    """
    _set_limits(memory_bytes, cpu_s)
    if _FILTER:
        _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _FILTER, 0, 0)


def limit_cpu_from_now(cpu_s: float) -> None:
    """Let the kernel kill this process after that much CPU time, unless this is called again before."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)


def _set_limits(memory_bytes: int, cpu_s: float) -> None:
    with open("/proc/self/statm", "rb") as statm:  # opened first: it cannot be opened once descriptors are limited
        address_space = int(statm.read().split()[0]) * resource.getpagesize()
    for which, limit in (
        (resource.RLIMIT_AS, address_space + memory_bytes),
        (resource.RLIMIT_CPU, math.ceil(cpu_s)),
        (resource.RLIMIT_FSIZE, 0),  # no file can grow; this does not limit pipes
        (resource.RLIMIT_CORE, 0),  # a dump would hold the caller's audio
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 0),  # descriptors that are open stay, and no other can be opened
    ):
        _, hard = resource.getrlimit(which)
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)  # such as that of `ulimit -v`
        resource.setrlimit(which, (limit, limit))


def _become_nobody() -> None:
    if os.geteuid() != 0:
        return
    with contextlib.suppress(OSError):  # a user namespace may not map this id
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)


def _bpf(audit_arch: int, calls: tuple[int, ...]) -> bytes:
    """Classic BPF over struct seccomp_data (number at 0, architecture at 4): allow `calls`, EPERM for the rest."""
    load, equal, ret = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
    kill, allow, refuse = 0x8000_0000, 0x7FFF_0000, 0x0005_0000 | errno.EPERM
    steps = [(load, 0, 0, 4), (equal, 1, 0, audit_arch), (ret, 0, 0, kill), (load, 0, 0, 0)]
    steps += [(equal, len(calls) - place, 0, number) for place, number in enumerate(calls)]
    steps += [(ret, 0, 0, refuse), (ret, 0, 0, allow)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


_FILTER_CODE = _bpf(*_CALLS[platform.machine()]) if platform.machine() in _CALLS else b""
_FILTER_STEPS = ctypes.create_string_buffer(_FILTER_CODE, len(_FILTER_CODE))
# struct sock_fprog: how many steps, and where they are
_FILTER = _FILTER_CODE and struct.pack("HxxxxxxP", len(_FILTER_CODE) // 8, ctypes.addressof(_FILTER_STEPS))
