"""The time of a server's engine thread by what it does: the functions that it calls are timed, without what they call.

The wall time of a function that waits for nothing and its processor time differ by what the thread waited for the
interpreter's lock and for a core.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from asr_server.engine.qwen_asr import decoder, engine, runtime, windows
from asr_server.engine.qwen_asr.tokenizer import PromptBuilder
from asr_server.engine.torch import passes
from asr_server.engine.torch.language_model import LanguageModel
from asr_server.schedule.thread import EngineThread

# A name in the figures, and the function: of a class, or of the module that calls it.
SEAMS: tuple[tuple[str, Any, str], ...] = (
    ("idle", EngineThread, "_wait_for_work"),
    ("turn", EngineThread, "turn"),
    ("turn: drop cancelled", EngineThread, "_drop_cancelled"),
    ("turn: admit", EngineThread, "_admit"),
    ("turn: hand out", EngineThread, "_hand_out"),
    ("turn: unload idle", EngineThread, "_unload_idle"),
    ("admit", engine.QwenEngine, "admit"),
    ("admit: prompt", PromptBuilder, "_build"),
    ("admit: log-mel", windows.WindowedAudio, "prepare"),
    ("engine: publish", engine.QwenEngine, "_publish"),
    ("engine: read answer", engine, "_hypothesis"),
    ("engine: drop row", runtime.Runtime, "drop"),
    ("prefill: seat", runtime.Runtime, "seat"),
    ("prefill: encode", runtime.Runtime, "_encode"),
    ("prefill", decoder.ArenaDecoder, "prefill"),
    ("prefill: keep", runtime.Runtime, "keep"),
    ("step", decoder.ArenaDecoder, "step"),
    ("pass: replay", passes.PassGraphs, "run"),
    ("step: note", decoder, "note"),
    ("pass: choose", decoder.ArenaDecoder, "_choose"),
    ("pass: layout", passes.Layout, "__init__"),
    ("pass: attention", passes.Pass, "__init__"),
    ("pass: layers", LanguageModel, "__call__"),
    ("pass: wait for ids", decoder, "choices"),
)
WRITE_S = 0.25


class EngineTimes:
    """Calls, wall seconds and processor seconds by name, all of one thread."""

    def __init__(self) -> None:
        self._found: dict[str, list[float]] = {name: [0, 0.0, 0.0] for name, *_ in SEAMS}
        self._inner = [[0.0, 0.0]]  # for each call under way: wall and processor seconds of the calls within it

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` as one that is timed."""
        found = self._found[name]

        def run(*args: Any, **keywords: Any) -> Any:
            self._inner.append([0.0, 0.0])
            began_s, used_s = time.perf_counter(), time.thread_time()
            try:
                return function(*args, **keywords)
            finally:
                took_s, used_s = time.perf_counter() - began_s, time.thread_time() - used_s
                inner_s, inner_used_s = self._inner.pop()
                found[0] += 1
                found[1] += took_s - inner_s
                found[2] += used_s - inner_used_s
                self._inner[-1][0] += took_s
                self._inner[-1][1] += used_s

        return run

    def write(self, file: Path) -> None:
        """Replace the file by the figures so far."""
        new = file.with_suffix(".new")
        new.write_text(json.dumps({"monotonic_s": time.monotonic(), "found": self._found}))
        new.replace(file)


@contextmanager
def timed(file: Path) -> Iterator[None]:
    """Time the engine thread, and write the figures to `file` all the time."""
    times = EngineTimes()

    def write() -> None:
        while True:
            time.sleep(WRITE_S)
            times.write(file)

    with ExitStack() as patches:
        for name, owner, attribute in SEAMS:
            patches.enter_context(mock.patch.object(owner, attribute, times.timed(name, getattr(owner, attribute))))
        times.write(file)
        threading.Thread(target=write, daemon=True).start()
        yield


def read(file: Path) -> dict[str, Any]:
    """Return the figures of a file, for `between`."""
    return json.loads(file.read_text())


def between(before: dict[str, Any], after: dict[str, Any]) -> dict[str, list[float]]:
    """Return for each function the calls in a second, and the percentages of the time that it took and computed."""
    passed_s = after["monotonic_s"] - before["monotonic_s"]
    found = {
        name: [late - early for late, early in zip(values, before["found"][name], strict=True)]
        for name, values in after["found"].items()
    }
    return {
        name: [round(calls / passed_s, 1), round(100 * wall_s / passed_s, 1), round(100 * used_s / passed_s, 1)]
        for name, (calls, wall_s, used_s) in sorted(found.items(), key=lambda item: -item[1][1])
        if passed_s > 0 and calls
    }
