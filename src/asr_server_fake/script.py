"""The script of the fake engine, its answers and faults, as a JSON file or a dataclass. For tests.

`FAKE_ENGINE_SCRIPT` names a JSON file with the fields of `FakeScript`, every one optional; `rules` is a list of objects
with the fields of `Rule`. An unknown field is an error. The file is read again when it changes, so that a test may give
a running server a new script (replace the file in one step, by a rename). A new script resets all counts.

    {
      "step_s": 0.05,
      "rules": [
        {"context": "please fail", "fault": "raise", "after_tokens": 2},
        {"min_s": 20, "sampled": true, "text": "no no no", "finish": "loop"},
        {"call": 1, "fault": "hang", "hang_s": 6},
        {"text": "turn off the lights", "language": "English"}
      ]
    }

The first rule that applies to an utterance decides. If none applies, the answer follows from the audio: "one two three
..." in English, `words_per_s` words a second, and nothing for silence. Whatever the answer, it obeys the engine's
contract: `language`, `prefix`, `draft`, `temperature` and `seed` of the utterance have their effect.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from asr_server.core.errors import AsrError, EngineFailed, EngineOutOfMemory, ModelUnavailable
from asr_server.engine.protocol import Finish, Utterance

_POLL_S = 0.005


class Fault(StrEnum):
    """A kind of fault that the script can have."""

    RAISE = "raise"  # this row fails with `TranscriptionFailed`
    MEMORY = "memory"  # this row fails with `EngineOutOfMemory`
    BREAK = "break"  # the whole step raises: every row of the batch fails
    FATAL = "fatal"  # the accelerator is lost: `EngineFailed`
    HANG = "hang"  # the engine thread stands still, for `hang_s` seconds or while `hang_file` is there


@dataclass(frozen=True, slots=True)
class FaultRule:
    """The conditions and the fault that rules for utterances and for sentences have in common."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    call: int = 0  # it is the `call`-th utterance or sentence of the engine, counted from 1; 0 is any
    times: int = 0  # how often the rule applies; 0 is without limit

    fault: Fault | None = None  # happens once to each row; None for no fault
    at: Literal["admission", "step"] = "step"  # "admission" of the row, or a "step"
    hang_s: float = 0.0  # how long a hang lasts
    hang_file: Path | None = None  # is created when the hang begins; to end it, delete the file


@dataclass(frozen=True, slots=True)
class Rule(FaultRule):
    """A rule for utterances: conditions, all of which must hold, then an answer and a fault.

    An answer that ends as a `loop` repeats its last word in the deltas, as a real one does.
    """

    model: str = ""  # name of the model that is asked
    context: str = ""  # part of the utterance's context
    min_s: float = 0.0  # seconds of its audio at least
    max_s: float = math.inf  # seconds of its audio at most
    sampled: bool | None = None  # temperature above 0, or not
    live: bool | None = None  # it belongs to a live session, or not
    # The rule applies only while this file is not there, and creates it: once for all processes that share the script.
    once_file: Path | None = None

    text: str | None = None  # None: the answer that follows from the audio
    language: str = "English"  # the model's name of the language
    finish: Finish = Finish.END
    forced_logprob: float | None = None  # of each forced id; None: by its id, as for others
    language_logprob: float | None = None  # of the token that names the language; None: by its id, as for others
    no_speech_prob: float | None = None  # unless it is set, 0.02 for an answer with text and 0.98 for one without

    after_tokens: int = 0  # tokens that the row was given before the step of a fault; 0 is the first one, the prefill

    def matches(self, utterance: Utterance, audio_s: float, call: int) -> bool:
        """True if its conditions hold for this utterance, the `call`-th. The engine checks `model`, `times` and
        `once_file`."""
        return (
            self.context in utterance.context
            and self.min_s <= audio_s <= self.max_s
            and self.call in (0, call)
            and self.sampled in (None, utterance.temperature > 0)
            and self.live in (None, utterance.session is not None)
        )


@dataclass(frozen=True, slots=True)
class SpeechRule(FaultRule):
    """A rule for sentences to speak: conditions, all of which must hold, then how they end and a fault."""

    text: str = ""  # part of the sentence
    finish: Literal["end", "budget"] = "end"  # a sentence that ends at its budget has half of its samples
    after_blocks: int = 0  # blocks of samples that the row was given before the step of a fault

    def matches(self, text: str, call: int) -> bool:
        """True if its conditions hold for this sentence, the `call`-th. The engine checks `times`."""
        return self.text in text and self.call in (0, call)


@dataclass(frozen=True, slots=True)
class SpokenScript:
    """The script of the speech engine `fake`."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    rules: tuple[SpeechRule, ...] = ()
    step_s: float = 0.0  # seconds that a step takes, which gives each row a block of samples
    load_s: float = 0.0  # seconds that loading takes
    load_failures: int = 0  # how many of the first loads fail


@dataclass(frozen=True, slots=True)
class FakeScript:
    """The script of the whole engine."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    words_per_s: float = 2.0  # words of the answers that follow from the audio
    rules: tuple[Rule, ...] = ()

    load_s: float = 0.0  # seconds that loading takes
    # seconds before that in which no thread of the process runs, as during the import of a native library
    load_freeze_s: float = 0.0
    load_failures: int = 0  # how many of the first loads fail

    step_s: float = 0.0  # seconds that a step takes
    stall_every: int = 0  # every n-th step takes `stall_s` instead, beginning with the first; 0 is never
    stall_s: float = 0.0

    aligner_locate_s: float = 0.0  # seconds until the aligner is found; it spreads words evenly over the audio
    aligner_missing: bool = False  # it is not found
    align_s: float = 0.0  # seconds that a pass takes
    align_fails: bool = False  # each pass fails

    speech: SpokenScript = field(default_factory=SpokenScript)  # for `SPEECH=fake` and `SPEECH_CLONE_MODEL=fake`


class ScriptError(ValueError):
    """The file is not a script; the message says where."""


_JSON = TypeAdapter(FakeScript)
R = TypeVar("R", bound=FaultRule)


def read(path: Path) -> FakeScript:
    """Return the script in a JSON file. Raises `ScriptError`."""
    try:
        return _JSON.validate_json(path.read_bytes())
    except OSError as error:
        raise ScriptError(f"FAKE_ENGINE_SCRIPT={path}: {error.strerror}.") from None
    except ValidationError as error:
        places = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'the file'}: {e['msg']}" for e in error.errors())
        raise ScriptError(f"FAKE_ENGINE_SCRIPT={path}: {places}.") from None


class ScriptSource:
    """The current script: a fixed one, or a file that is read again when it changes."""

    def __init__(self, source: FakeScript | Path) -> None:
        self._path = source if isinstance(source, Path) else None
        self._stamp: tuple[int, int] | None = None
        self._script = source if isinstance(source, FakeScript) else FakeScript()
        self.changes = 0
        self.current()

    def replace(self, script: FakeScript) -> None:
        """Switch to another script. Any thread may call this; the engine finds the script when it next looks."""
        self._path, self._script = None, script
        self.changes += 1

    def current(self) -> FakeScript:
        """Return the script as it is now. `changes` counts how often it has changed. Raises `ScriptError`."""
        if self._path is not None and (stamp := _stamp(self._path)) != self._stamp:
            self._script, self._stamp = read(self._path), stamp
            self.changes += 1
        return self._script


class Scripted:
    """Base of the scripted engines: loads that take time and fail, rules, and counted calls.

    A new script resets all counts.
    """

    loaded = False

    def __init__(self, source: FakeScript | Path) -> None:
        self.scripts = ScriptSource(source)
        self.loads = self.steps = self.calls = 0
        self._applied: Counter[FaultRule] = Counter()
        self._changes = self.scripts.changes

    def script(self) -> FakeScript:
        script = self.scripts.current()
        if self.scripts.changes != self._changes:
            self._changes = self.scripts.changes
            self.loads = self.steps = self.calls = 0
            self._applied.clear()
        return script

    def run_load(self, script: FakeScript | SpokenScript, what: str) -> None:
        """Take as long as the load. Raises `ModelUnavailable` for the model `what` if the script says so."""
        time.sleep(script.load_s)
        self.loads += 1
        if self.loads <= script.load_failures:
            raise ModelUnavailable(f"{what}: the script says that it cannot be loaded.")
        self.loaded = True

    def first(self, rules: Iterable[R], applies: Callable[[R], bool]) -> R | None:
        """Return the first rule that applies and has not applied often enough, and count it."""
        for rule in rules:
            if not (rule.times and self._applied[rule] >= rule.times) and applies(rule):
                self._applied[rule] += 1
                return rule
        return None


def strike(rule: FaultRule, failure: AsrError, no_memory: EngineOutOfMemory) -> AsrError | None:
    """Act out the fault of a row's rule: break the step, fail for good, hang, or return one of the given errors for the
    row. Return None if the row continues."""
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


def _hang(rule: FaultRule) -> None:
    """Wait for `hang_s` seconds, or create `hang_file` and wait until it is deleted."""
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
