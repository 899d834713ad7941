"""The `fake` engine: scripted answers, delays and faults through the whole engine contract. For tests; uses no model.

`MODEL_ID=fake` starts it and nothing else does. `script.py` describes what its script can contain.
"""

from __future__ import annotations

import ctypes
import math
import random
import re
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from asr_server.core.audio import samples_to_s, samples_to_whole_ms
from asr_server.core.errors import AsrError, EngineOutOfMemory, ModelUnavailable, TranscriptionFailed
from asr_server.engine.feature import Plan
from asr_server.engine.loops import token_budget
from asr_server.engine.protocol import (
    AlignedPiece,
    AlignItem,
    Alignment,
    EngineInfo,
    Finish,
    Hypothesis,
    Tokens,
    Utterance,
    Written,
    in_tokens,
)
from asr_server.engine.row import accepted
from asr_server.schedule.model import Outcome, RowDelta, RowDone, RowFailed
from asr_server_fake.script import FakeScript, Rule, Scripted, ScriptSource, strike

# Audio whose loudest sample is below this is silence.
_SILENCE_PEAK = 0.01
_AUDIO_TOKENS_PER_S = 13
_PROMPT_TOKENS = 9
_LOOP_TURNS = 6
# Sampled answers have this in place of some words.
_HESITATION = " um"
_UNITS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
# A word with the blank before it, or a single character of a script without blanks.
_PIECE = re.compile(r"\s*(?:[\u3040-\u30ff\u3400-\u9fff]|[^\s\u3040-\u30ff\u3400-\u9fff]+)")
_IDEOGRAPHS = re.compile(r"([\u3040-\u30ff\u3400-\u9fff])")


@dataclass(frozen=True, slots=True)
class _Piece:
    """The meaning of one token id: some text, or the name of the language."""

    text: str
    language: str | None = None  # the language that the id names, "" for no speech; None for an id that is text


class _Vocabulary:
    """Token ids of pieces of text. An id depends only on its text, so every process gives the same ids."""

    def __init__(self) -> None:
        self._pieces: dict[int, _Piece] = {}
        # The words of default answers are known from the start, to read ids that another process gave.
        for name in ("English", ""):
            self.id_of(_Piece("", name))
        for number in range(100):
            self.id_of(_Piece(_number(number)))
            self.id_of(_Piece(f" {_number(number)}"))

    def id_of(self, piece: _Piece) -> int:
        """Return the id of a piece, which is known from now on."""
        spelled = piece.text if piece.language is None else f"<language {piece.language}>"
        found = zlib.crc32(spelled.encode())
        if self._pieces.setdefault(found, piece) != piece:
            raise ValueError(f"{piece} and {self._pieces[found]} have the same id")
        return found

    def piece(self, token: int) -> _Piece:
        """Return the meaning of an id. Raises `KeyError` for one that was never given."""
        return self._pieces[token]


@dataclass(slots=True, eq=False)
class _Row:
    """An admitted utterance."""

    utterance: Utterance
    rule: Rule  # the rule that decides its answer
    ids: tuple[int, ...]  # the answer
    tail: tuple[int, ...]  # repetitions after it that only deltas show
    finish: Finish
    no_speech_prob: float | None
    given: int = 0  # how many tokens of it were handed out
    passes: int = 0
    struck: bool = False  # its fault has happened


class FakeEngine(Scripted):
    """Implements `engine.protocol.Engine`: one token a step for every row, with the answers and faults of a script.

    `on_progress` is called in every step. `script` replaces the file that the plan names; a test changes it with
    `scripts.replace`. `default_text` returns the text of an utterance if no rule has one.
    """

    name = "fake"
    fits = True  # it takes no memory

    def __init__(
        self,
        plan: Plan,
        on_progress: Callable[[], None] = lambda: None,
        script: FakeScript | None = None,
        default_text: Callable[[Utterance], str] | None = None,
    ) -> None:
        super().__init__(script or plan.fake_script or FakeScript())
        self._plan = plan
        self._on_progress = on_progress
        self._text_of = default_text or self._counted
        self._vocabulary = _Vocabulary()
        self._rows: dict[int, _Row] = {}

    @property
    def info(self) -> EngineInfo:
        """Return the facts. As with a real engine, slots are known only once it is loaded."""
        slots = self._plan.max_batch if self.loaded else 0
        return EngineInfo(self.name, self._plan.model_id, self._plan.device, self._plan.dtype, slots=slots)

    @property
    def free_slots(self) -> int:
        return self._plan.max_batch - len(self._rows)

    urgent_slots = free_slots  # all rows begin with the next step

    def load(self) -> None:
        """Take as long as the script says. Raises `ModelUnavailable` if the script says so."""
        script = self.script()
        if script.load_freeze_s:
            # PyDLL does not release the interpreter's lock: no other thread of the process runs.
            ctypes.PyDLL(None).usleep(int(1e6 * script.load_freeze_s))
        self.run_load(script, f"MODEL_ID={self._plan.model_id}")

    def unload(self) -> None:
        """Forget every row."""
        self.loaded = False
        self._rows.clear()

    def admit(self, key: int, item: Utterance, urgent: bool = False) -> None:
        """Admit a row. Raises the error that the script demands."""
        assert self.loaded, "admit() before load()"
        script = self.script()  # first, since a new script resets the counts
        self.calls += 1
        item = in_tokens(item, self._encode)
        rule = self.first(script.rules, partial(self._applies, item)) or Rule()
        row = self._answer(item, rule)
        if rule.fault is not None and rule.at == "admission" and (error := self._strike(row)) is not None:
            raise error
        self._rows[key] = row

    def step(self, begin_s: float | None = None) -> Iterator[Outcome]:
        """Give every row one token. Raises if the script breaks the step."""
        self._on_progress()
        script = self.script()
        stalls = script.stall_every and self.steps % script.stall_every == 0
        self.steps += 1
        time.sleep(script.stall_s if stalls else script.step_s)
        for key, row in list(self._rows.items()):
            due = row.rule.fault is not None and row.rule.at == "step" and row.given >= row.rule.after_tokens
            if due and not row.struck and (error := self._strike(row)) is not None:
                del self._rows[key]
                yield RowFailed(key, error)
            else:
                yield from self._advance(key, row)

    def drop(self, key: int) -> None:
        self._rows.pop(key, None)

    def _applies(self, item: Utterance, rule: Rule) -> bool:
        audio_s = samples_to_s(len(item.audio))
        if rule.model not in ("", self._plan.model_id) or not rule.matches(item, audio_s, self.calls):
            return False
        if rule.once_file is not None:
            try:
                rule.once_file.touch(exist_ok=False)
            except FileExistsError:
                return False
        return True

    def _strike(self, row: _Row) -> AsrError | None:
        """Return the error of the row, or None if it continues."""
        row.struck = True
        no_memory = EngineOutOfMemory("No memory is left for this audio.")
        return strike(row.rule, TranscriptionFailed("The engine failed on this audio."), no_memory)

    def _answer(self, item: Utterance, rule: Rule) -> _Row:
        text = self._text_of(item) if rule.text is None else rule.text
        pieces = [_Piece(piece) for piece in _PIECE.findall(text)]
        if rule.text is None and item.temperature > 0:
            pieces = _sampled(pieces, item)
        if item.language is None:
            pieces.insert(0, _Piece("", _named(rule, item) if text else ""))
        ids = [self._vocabulary.id_of(piece) for piece in pieces]
        ids[: len(item.prefix)] = item.prefix
        budget, finish = token_budget(len(item.audio)) + len(item.prefix), rule.finish
        if len(ids) > budget:
            ids, finish = ids[:budget], Finish.BUDGET
        tail = ids[-1:] * _LOOP_TURNS if finish is Finish.LOOP else ()
        silence = rule.no_speech_prob if rule.no_speech_prob is not None else (0.02 if text else 0.98)
        return _Row(item, rule, tuple(ids), tuple(tail), finish, None if item.language is not None else silence)

    def _encode(self, written: Written, forced: bool) -> tuple[int, ...]:
        named = [] if forced else [_Piece("", written.language)]
        return tuple(map(self._vocabulary.id_of, [*named, *map(_Piece, _PIECE.findall(written.text))]))

    def _counted(self, item: Utterance) -> str:
        if float(np.abs(item.audio).max(initial=0.0)) < _SILENCE_PEAK:
            return ""
        count = max(1, int(samples_to_s(len(item.audio)) * self.script().words_per_s))
        return " ".join(_number(n) for n in range(1, count + 1))

    def _advance(self, key: int, row: _Row) -> Iterator[Outcome]:
        """Run one pass of a row: it yields a token, and in the first pass also the forced tokens and the part of the
        draft that is right."""
        whole = row.ids + row.tail
        known = 0
        if row.passes == 0:
            draft = row.utterance.draft if row.utterance.temperature == 0 else ()
            known = max(len(row.utterance.prefix), accepted(draft, whole))
        row.passes += 1
        new = whole[row.given : row.given + known + 1]
        # The end of an answer is a token of its own, as in a real model, unless the row is stopped before.
        over = row.given + known + 1 > len(whole)
        stopped = row.finish is not Finish.END and row.given + known + 1 >= len(whole)
        if new:
            text = self._text(row, whole, row.given, row.given + len(new)) if row.utterance.stream else ""
            yield RowDelta(key, Tokens(new, self._logprobs(row, new, row.given), text))
            row.given += len(new)
        if over or stopped:
            del self._rows[key]
            yield RowDone(key, self._hypothesis(row))

    def _text(self, row: _Row, ids: Sequence[int], start: int, end: int) -> str:
        """Return the text that ids[start:end] write; an answer does not begin with a blank."""
        whole = "".join(self._vocabulary.piece(token).text for token in ids[:end]).lstrip()
        before = "".join(self._vocabulary.piece(token).text for token in ids[:start]).lstrip()
        return whole[len(before) :]

    def _logprobs(self, row: _Row, ids: Sequence[int], first: int) -> tuple[float, ...]:
        """Return the log-probabilities of ids of a row; `first` ids come before them."""
        rule, forced = row.rule, len(row.utterance.prefix)

        def logprob(number: int, token: int) -> float:
            if rule.forced_logprob is not None and number < forced:
                return rule.forced_logprob
            if rule.language_logprob is not None and self._vocabulary.piece(token).language is not None:
                return rule.language_logprob
            return _logprob(token)

        return tuple(logprob(number, token) for number, token in enumerate(ids, first))

    def _hypothesis(self, row: _Row) -> Hypothesis:
        pieces = [self._vocabulary.piece(token) for token in row.ids]
        lengths = [len(self._text(row, row.ids, 0, end)) for end in range(1, len(row.ids) + 1)]
        named = next((piece.language for piece in pieces if piece.language is not None), None)
        item = row.utterance
        return Hypothesis(
            text=self._text(row, row.ids, 0, len(row.ids)),
            language=item.language if item.language is not None else named or "",
            ids=row.ids,
            logprobs=self._logprobs(row, row.ids, 0),
            finish=row.finish,
            audio_tokens=math.ceil(samples_to_s(len(item.audio)) * _AUDIO_TOKENS_PER_S),
            prompt_tokens=_PROMPT_TOKENS + len(item.context.split()),
            passes=row.passes,
            no_speech_prob=row.no_speech_prob,
            offsets=tuple(lengths),
            pieces=tuple(piece.text.encode() for piece in pieces),
        )


class FakeAligner:
    """Implements `engine.protocol.Aligner`: spreads the words evenly over the audio."""

    def __init__(self, plan: Plan, script: FakeScript | None = None) -> None:
        self.aligner_id = plan.aligner_id
        self.loaded = False
        self.scripts = ScriptSource(script or plan.fake_script or FakeScript())

    def locate(self) -> None:
        """Take as long as the script says. Raises `ModelUnavailable` if the script says so."""
        script = self.scripts.current()
        time.sleep(script.aligner_locate_s)
        if script.aligner_missing:
            raise ModelUnavailable(f"FORCED_ALIGNER_ID={self.aligner_id}: the script says that there is none.")

    def load(self) -> None:
        self.loaded = True

    def unload(self) -> None:
        self.loaded = False

    def cost(self, item: AlignItem) -> int:
        return int(samples_to_s(len(item.audio)) * _AUDIO_TOKENS_PER_S) + 2 * len(_words(item.text))

    def align(self, items: Sequence[AlignItem]) -> Iterator[list[Alignment | AsrError] | None]:
        """Words of equal length, without a pause between them."""
        script = self.scripts.current()
        time.sleep(script.align_s)
        if script.align_fails:
            yield [TranscriptionFailed("The aligner failed on this audio.") for _ in items]
        else:
            yield [_spread(item) for item in items]


def _spread(item: AlignItem) -> Alignment:
    words, length_ms = _words(item.text), samples_to_whole_ms(len(item.audio))
    ends = [length_ms * n // max(1, len(words)) for n in range(len(words) + 1)]
    return Alignment(tuple(AlignedPiece(word, ends[n], ends[n + 1]) for n, word in enumerate(words)))


def _words(text: str) -> list[str]:
    """Words between blanks and single ideographs: their letters, digits and apostrophes."""
    pieces = [piece for word in text.split() for piece in _IDEOGRAPHS.split(word)]
    kept = ("".join(c for c in piece if c.isalnum() or c == "'") for piece in pieces)
    return [word for word in kept if word]


def _sampled(pieces: Sequence[_Piece], item: Utterance) -> list[_Piece]:
    """Replace some words: more at a higher temperature, and always the same words for one seed."""
    chance = random.Random(item.seed)
    return [replace(p, text=_HESITATION) if chance.random() < item.temperature / 4 else p for p in pieces]


def _named(rule: Rule, item: Utterance) -> str:
    """Return the language that the answer names: the scripted one, or the first allowed one if that is not allowed."""
    return rule.language if not item.languages or rule.language in item.languages else item.languages[0]


def _logprob(token: int) -> float:
    return -0.05 - token % 10 / 100


def _number(n: int) -> str:
    """Return the English word for `n` modulo 100."""
    n %= 100
    if n < len(_UNITS):
        return _UNITS[n]
    tens = _TENS[n // 10 - 2]
    return f"{tens}-{_UNITS[n % 10]}" if n % 10 else tens
