"""What the fake engine answers and which faults it has, as a JSON file or a dataclass. For tests.

`FAKE_ENGINE_SCRIPT` names a JSON file with the fields of `FakeScript`, every one optional; `rules` is a list of objects
with the fields of `Rule`. An unknown field is an error. The file is read again when it changes, so that a test may give
a running server a new script (replace the file in one step, by a rename); the counts of calls and rules begin anew.

    {
      "step_s": 0.05,
      "rules": [
        {"context": "please fail", "fault": "raise", "after_tokens": 2},
        {"min_s": 20, "sampled": true, "text": "no no no", "finish": "loop"},
        {"call": 1, "fault": "hang", "hang_s": 6},
        {"text": "turn off the lights", "language": "English"}
      ]
    }

The first rule that applies to an utterance decides. Without one the answer follows from the audio: "one two three ..."
in English, `words_per_s` words a second, and nothing for silence. Whatever the answer, it obeys the engine's contract:
`language`, `prefix`, `draft`, `temperature` and `seed` of the utterance have their effect.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from asr_server.core.errors import AsrError, EngineFailed, EngineOutOfMemory
from asr_server.engine.protocol import Finish, Utterance
from asr_server.engine.speech.protocol import SpeechFinish

_POLL_S = 0.005


class Fault(StrEnum):
    """What goes wrong."""

    RAISE = "raise"  # this row fails with `TranscriptionFailed`
    MEMORY = "memory"  # this row fails with `EngineOutOfMemory`
    BREAK = "break"  # the whole step raises: every row of the batch fails
    FATAL = "fatal"  # the accelerator is lost: `EngineFailed`
    HANG = "hang"  # the engine thread stands still, for `hang_s` seconds or while `hang_file` is there


@dataclass(frozen=True, slots=True)
class Rule:
    """Which utterances it is for (every condition that is set must hold), and what becomes of them.

    Conditions: `model` is the name of the one that is asked; `context` is part of the utterance's context; its audio
    lasts `min_s` to `max_s` seconds; it is the `call`-th utterance of the engine, counted from 1; it is `sampled`
    (temperature above 0) or not; it belongs to a `live` session or not. A rule applies `times` times, 0 is without
    limit. With `once_file` it applies only while that file is not there, and creates it: once for all processes that
    share the script.

    Answer: `text` (None: the answer that follows from the audio), `language` and `finish`. `no_speech_prob` is 0.02 for
    an answer with text and 0.98 for one without, unless it is set. An answer that ends as a `loop` repeats its last
    word in the deltas, as a real one does.

    Fault: `fault` strikes at the row's admission, or (`at` is "step") in the step after `after_tokens` tokens were
    given; 0 is its first step, the prefill. `hang_file` is created when the hang begins; to end it, delete the file.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    model: str = ""
    context: str = ""
    min_s: float = 0.0
    max_s: float = math.inf
    call: int = 0
    sampled: bool | None = None
    live: bool | None = None
    times: int = 0
    once_file: Path | None = None

    text: str | None = None
    language: str = "English"
    finish: Finish = Finish.END
    no_speech_prob: float | None = None

    fault: Fault | None = None
    at: Literal["admission", "step"] = "step"
    after_tokens: int = 0
    hang_s: float = 0.0
    hang_file: Path | None = None

    def matches(self, utterance: Utterance, audio_s: float, call: int) -> bool:
        """Whether its conditions hold for this utterance, the `call`-th. `model`, `times` and `once_file` are the
        engine's."""
        return (
            self.context in utterance.context
            and self.min_s <= audio_s <= self.max_s
            and self.call in (0, call)
            and self.sampled in (None, utterance.temperature > 0)
            and self.live in (None, utterance.session is not None)
        )


@dataclass(frozen=True, slots=True)
class SpeechRule:
    """Which sentences it is for, and what becomes of them.

    Conditions: `text` is part of the sentence; it is the `call`-th sentence of the engine, counted from 1. A rule
    applies `times` times, 0 is without limit.

    `finish`: a sentence that ends at its budget has half of its samples. `fault` strikes at the row's admission, or
    (`at` is "step") in the step after `after_blocks` blocks of samples were given. `hang_s`, `hang_file`: as above.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    text: str = ""
    call: int = 0
    times: int = 0

    finish: SpeechFinish = SpeechFinish.END

    fault: Fault | None = None
    at: Literal["admission", "step"] = "step"
    after_blocks: int = 0
    hang_s: float = 0.0
    hang_file: Path | None = None

    def matches(self, text: str, call: int) -> bool:
        """Whether its conditions hold for this sentence, the `call`-th. `times` is the engine's."""
        return self.text in text and self.call in (0, call)


@dataclass(frozen=True, slots=True)
class SpeechScript:
    """The speech engine `fake`: a step gives each row a block of samples and takes `step_s` seconds. Loading takes
    `load_s` seconds, and fails the first `load_failures` times."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    rules: tuple[SpeechRule, ...] = ()
    step_s: float = 0.0
    load_s: float = 0.0
    load_failures: int = 0


@dataclass(frozen=True, slots=True)
class FakeScript:
    """The whole engine.

    Loading takes `load_s` seconds, and before that `load_freeze_s` seconds in which no thread of the process moves, as
    while a native library is imported. The first `load_failures` loads fail: with `ModelUnavailable`, or with
    `EngineOutOfMemory` if `load_fault` is "memory".

    A step takes `step_s` seconds; with `stall_every` each step of that number takes `stall_s` instead, the first one
    included.

    The aligner spreads the words evenly over the audio. It is found after `aligner_locate_s` seconds, or not at all if
    `aligner_missing`; a pass takes `align_s` seconds and fails if `align_fails`.

    `speech` is for `SPEECH=fake` and `SPEECH_CLONE_MODEL=fake`.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    words_per_s: float = 2.0
    rules: tuple[Rule, ...] = ()

    load_s: float = 0.0
    load_freeze_s: float = 0.0
    load_failures: int = 0
    load_fault: Literal[Fault.RAISE, Fault.MEMORY] = Fault.RAISE

    step_s: float = 0.0
    stall_every: int = 0
    stall_s: float = 0.0

    aligner_locate_s: float = 0.0
    aligner_missing: bool = False
    align_s: float = 0.0
    align_fails: bool = False

    speech: SpeechScript = field(default_factory=SpeechScript)


class ScriptError(ValueError):
    """The file is not a script; the message says where."""


_JSON = TypeAdapter(FakeScript)


def read(path: Path) -> FakeScript:
    """The script in a JSON file. Raises `ScriptError`."""
    try:
        return _JSON.validate_json(path.read_bytes())
    except OSError as error:
        raise ScriptError(f"FAKE_ENGINE_SCRIPT={path}: {error.strerror}.") from None
    except ValidationError as error:
        places = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'the file'}: {e['msg']}" for e in error.errors())
        raise ScriptError(f"FAKE_ENGINE_SCRIPT={path}: {places}.") from None


class ScriptSource:
    """The present script: a fixed one, or a file that is read again when it changes."""

    def __init__(self, source: FakeScript | Path) -> None:
        self._path = source if isinstance(source, Path) else None
        self._stamp: tuple[int, int] | None = None
        self._script = source if isinstance(source, FakeScript) else FakeScript()
        self.changes = 0
        self.current()

    def replace(self, script: FakeScript) -> None:
        """Go on with another script. From any thread: the engine's next look finds it."""
        self._path, self._script = None, script
        self.changes += 1

    def current(self) -> FakeScript:
        """The script as it is now; `changes` counts how often it became another one. Raises `ScriptError`."""
        if self._path is not None and (stamp := _stamp(self._path)) != self._stamp:
            self._script, self._stamp = read(self._path), stamp
            self.changes += 1
        return self._script


def strike(rule: Rule | SpeechRule, failure: AsrError, no_memory: EngineOutOfMemory) -> AsrError | None:
    """Do what the fault of a row's rule is: break the step, fail for good, hang, or return the error of the row alone,
    which is one of those given. None if the row goes on."""
    match rule.fault:
        case Fault.MEMORY:
            return no_memory
        case Fault.RAISE:
            return failure
        case Fault.BREAK:
            raise RuntimeError("the script breaks this step")
        case Fault.FATAL:
            raise EngineFailed("The accelerator failed (as the script says). The server starts again; try again.")
        case Fault.HANG:
            _hang(rule)
    return None


def _hang(rule: Rule | SpeechRule) -> None:
    """Return after `hang_s` seconds, or when `hang_file`, which is created here, is gone."""
    if rule.hang_file is None:
        time.sleep(rule.hang_s)
        return
    rule.hang_file.touch()
    while rule.hang_file.exists():
        time.sleep(_POLL_S)


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_ino)
