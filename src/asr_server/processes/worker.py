"""The main loop of a worker process: it answers requests from standard input, in order, confined like a decoder.

It has one thread and ends when the server closes its input or dies. Once confined, it can open no files, make no
connections and start no processes.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable
from typing import Any, BinaryIO, TypeVar

from asr_server.processes import messages, sandbox

_NO_LIMIT_S = 2.0**31  # `serve` sets a new limit for each request
_NICENESS = 5

T = TypeVar("T")


def prepare() -> None:
    """Give way to recognition, and to the server if memory is short. Called first of all."""
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    sandbox.give_way()


def confine(memory_bytes: int) -> None:
    """Confine the process once everything is imported and loaded. `memory_bytes` comes on top of what it then uses."""
    sandbox.freeze()  # the collections in `serve` need not walk what is loaded by now
    sandbox.prepare((0, 1, 2), os.getppid())
    sandbox.lock(memory_bytes, _NO_LIMIT_S)


def serve(
    requests: BinaryIO, answers: BinaryIO, answer: Callable[[dict[str, Any], bytes, dict[int, T]], bytes], cpu_s: float
) -> None:
    """Answer requests until there are no more, each within `cpu_s` of processor time.

    `answer` gets the content, the data, and the objects that it keeps, by number. Objects that the server has dropped
    are removed first.
    """
    kept: dict[int, T] = {}
    while request := messages.read(requests.read):
        content, data = request
        # A new limit for each request: the requests before it do not use it up.
        sandbox.limit_cpu_from_now(cpu_s)
        if dropped := content.pop("dropped"):
            for number in dropped:
                kept.pop(number, None)
            gc.collect()  # dropped objects may be in reference cycles, as PyAV's containers are
        try:
            message = answer(content, data, kept)
        except Exception as error:  # the error concerns only one of the kept streams
            message = messages.packed({"error": type(error).__name__})
        answers.write(message)
        answers.flush()
