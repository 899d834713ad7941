"""The main loop of a worker process: it answers requests from standard input, in order, confined like a decoder.

It has one thread and ends when the server closes its input or dies. Once it is confined it can open, connect and start
nothing.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable
from typing import Any, BinaryIO, TypeVar

from asr_server.processes import messages, sandbox

_NO_LIMIT_S = 2.0**31  # the limit of `serve` begins anew with each request
_NICENESS = 5

T = TypeVar("T")


def prepare() -> None:
    """First of all: give way to recognition, and to the server where memory is short."""
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    sandbox.give_way()


def confine(memory_bytes: int) -> None:
    """Confine the process once everything is imported and loaded. `memory_bytes` comes on top of what that takes."""
    sandbox.freeze()  # the collections of `serve` need not look through what is loaded by now
    sandbox.prepare((0, 1, 2), os.getppid())
    sandbox.lock(memory_bytes, _NO_LIMIT_S)


def serve(
    requests: BinaryIO, answers: BinaryIO, answer: Callable[[dict[str, Any], bytes, dict[int, T]], bytes], cpu_s: float
) -> None:
    """Answer requests until there are no more, each within `cpu_s` of processor time.

    `answer` gets the content, the data, and what it keeps, by number. What the server does not need any more is removed
    from that before.
    """
    kept: dict[int, T] = {}
    while request := messages.read(requests.read):
        content, data = request
        # Each request anew: the limit of one that hangs is not used up by those before it.
        sandbox.limit_cpu_from_now(cpu_s)
        if dropped := content.pop("dropped"):
            for number in dropped:
                kept.pop(number, None)
            gc.collect()  # some of it may be in cycles, such as those of PyAV's containers
        try:
            message = answer(content, data, kept)
        except Exception as error:  # it concerns one of the kept streams
            message = messages.packed({"error": type(error).__name__})
        answers.write(message)
        answers.flush()
