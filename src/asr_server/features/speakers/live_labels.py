"""Labels the committed words of a live session: text and turns in, runs of one speaker out. Pure.

A live word has no times of its own. Each hypothesis covers the audio up to a known time, so the words that it adds to
the hypothesis before were said between these two times. They are spread over the speech between the times, in
proportion to their length.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

from asr_server.core.audio import samples_to_ms
from asr_server.core.transcript import MAX_SPEAKERS, SpeakerRun, TimeSource, Word
from asr_server.features.speakers.diarization import assignment
from asr_server.features.speakers.diarization.turns import Turn, VoicePrint, label
from asr_server.features.speakers.voices import NamedVoice, named
from asr_server.live.inference import WordTimestamps
from asr_server.live.machine.events import Final, Partial
from asr_server.live.outbox import CHARACTER_BYTES, MESSAGE_BYTES, TextDetails
from asr_server.subtitle.alignment import merged
from asr_server.text import words

# A word between two turns gets the speaker of the nearer turn if that one is within reach. The reach is shorter until
# the horizon has passed the word, since another turn may still come.
_REACH_MS, _SETTLED_REACH_MS = 500, 2_000
_ROUNDING_MS = 0.5
# The longest time for which labels may change, whatever the horizon is: every turn makes all of them be checked again.
_LONGEST_HORIZON_MS = 30_000
_UTTERANCES_KEPT, _TURNS_KEPT = 64, 512
_RUN_BYTES = 100  # of a run with the name but without the text, on the wire and in memory


@dataclass(frozen=True, slots=True)
class UtteranceSpeakers(TextDetails):
    """The committed text of an utterance, divided into runs of one speaker."""

    utterance: int
    runs: tuple[SpeakerRun, ...]
    settled: bool = False  # the text is final, and no label will change

    @property
    def is_empty(self) -> bool:
        return not self.runs

    def fields(self) -> dict[str, Any]:
        """Return the fields that a text gets on the wire."""
        runs = [{"speaker": run.speaker, "text": run.text} for run in self.runs]
        return {"speakers": runs, "speakers_settled": self.settled}

    def wire(self) -> dict[str, Any]:
        return {"type": "speaker_update", "utterance": self.utterance, **self.fields()}

    @property
    def size_bytes(self) -> int:
        return MESSAGE_BYTES + sum(_RUN_BYTES + CHARACTER_BYTES * len(run.text) for run in self.runs)


@dataclass(slots=True, eq=False)
class _Utterance:
    heard: list[tuple[int, int]]  # of each hypothesis: its length in characters, and the time at which its audio ends
    sent: UtteranceSpeakers  # what the client has
    committed: str = ""
    is_final: bool = False
    fixed: list[SpeakerRun] = field(default_factory=list)  # the first runs, which the horizon has passed
    fixed_chars: int = 0
    # The times of each word, by the position of its end in the text, if the words were aligned.
    times_ms: dict[int, tuple[int, int]] = field(default_factory=dict)


class LiveNames:
    """The names of one session."""

    def __init__(self) -> None:
        # A voice with such a name is not recognised, since another speaker may have that letter or get it.
        self._letters = {label(number) for number in range(MAX_SPEAKERS)}
        self._names: dict[int, str] = {}
        self._settled: dict[int, str] = {}  # the horizon has passed these: they never change

    def of(self, speaker: int) -> str:
        return self._settled.get(speaker) or self._names.get(speaker) or label(speaker)

    def settle(self, speaker: int) -> None:
        """Fix the present name or letter of a speaker."""
        self._settled.setdefault(speaker, self.of(speaker))

    def recognise(self, voice_prints: Mapping[int, VoicePrint], voices: Sequence[NamedVoice]) -> None:
        """Name all unsettled speakers again, and give no name twice. The next `on_turns` returns the changes.

        If a voice is most similar to a speaker whose letter is settled, no other speaker gets its name.
        """
        taken = self._letters | set(self._settled.values())
        unnamed = [speaker for speaker in voice_prints if self._settled.get(speaker, "") in {"", *self._letters}]
        found = named(
            [voice_prints[speaker] for speaker in unnamed], [voice for voice in voices if voice.name not in taken]
        )
        self._names = {speaker: name for speaker, name in zip(unnamed, found, strict=True) if name is not None}


class SpeakerLabels:
    """Labels the words of one session. The results of `on_text`, `on_turns` and `lose` count as sent."""

    def __init__(self) -> None:
        self.names = LiveNames()
        self._turns: list[Turn] = []
        self._settled_ms = 0
        self.lost = False
        self._utterances: dict[int, _Utterance] = {}

    def on_text(self, message: Partial | Final) -> UtteranceSpeakers:
        """Take the next text of an utterance, and return it with its speakers."""
        number = message.utterance
        if (utterance := self._utterances.get(number)) is None:
            began = (0, samples_to_ms(message.start_samples))
            utterance = self._utterances[number] = _Utterance([began], UtteranceSpeakers(number, ()))
        utterance.is_final = isinstance(message, Final)
        utterance.committed = message.text if isinstance(message, Final) else message.committed
        while utterance.heard[-1][0] > len(message.text):  # it was too long: at an onset, a hypothesis may repeat words
            utterance.heard.pop()
        chars, time_ms = utterance.heard[-1]
        if len(message.text) > chars:
            utterance.heard.append((len(message.text), max(time_ms, samples_to_ms(message.end_samples))))
        utterance.sent = self._label(utterance)
        self._forget()
        return utterance.sent

    def on_words(self, timed: WordTimestamps) -> WordTimestamps:
        """Return the words of a final with their speakers."""
        utterance = self._utterances.get(timed.utterance)
        if utterance is None or [word.text for word in timed.words] != words.split(utterance.committed):
            return timed
        ends = _word_ends(utterance.committed)
        if all(word.source is TimeSource.ALIGNED for word in timed.words):
            times_ms = [(word.start_ms, word.end_ms) for word in timed.words]
            utterance.times_ms = dict(zip(ends, times_ms, strict=True))
        runs = self._label(utterance).runs
        run_ends = list(accumulate(len(run.text) for run in runs))
        speakers = (runs[bisect_left(run_ends, end)].speaker for end in ends)
        labelled = (replace(word, speaker=who) for word, who in zip(timed.words, speakers, strict=True))
        return WordTimestamps(timed.utterance, tuple(labelled))

    def on_turns(self, changed: Sequence[Turn], settled_ms: int) -> list[UtteranceSpeakers]:
        """Take new and changed turns, and the new horizon. Returns the utterances whose labels change."""
        self._turns = sorted([*_outside(self._turns, changed), *changed], key=lambda turn: turn.start_ms)
        known_ms = max((turn.end_ms for turn in self._turns), default=0)
        self._settled_ms = max(self._settled_ms, settled_ms, known_ms - _LONGEST_HORIZON_MS)
        return self._changes()

    def lose(self) -> list[UtteranceSpeakers]:
        """Keep the labels as they are, since no more turns come. Words that are said from now on get no label."""
        for utterance in self._utterances.values():
            utterance.fixed = list(utterance.sent.runs)
            utterance.fixed_chars = sum(len(run.text) for run in utterance.fixed)
        self.lost = True
        return self._changes()

    def discard(self, utterance: int) -> None:
        self._utterances.pop(utterance, None)

    def _changes(self) -> list[UtteranceSpeakers]:
        changed = []
        for utterance in self._utterances.values():
            if not utterance.sent.settled and (labels := self._label(utterance)) != utterance.sent:
                utterance.sent = labels
                changed.append(labels)
        self._forget()
        return changed

    def _forget(self) -> None:
        if len(self._utterances) > _UTTERANCES_KEPT:
            settled = (number for number, utterance in self._utterances.items() if utterance.sent.settled)
            del self._utterances[next(settled, next(iter(self._utterances)))]
        begins_ms = [utterance.heard[0][1] for utterance in self._utterances.values() if not utterance.sent.settled]
        needed_ms = min([*begins_ms, self._settled_ms]) - _SETTLED_REACH_MS
        self._turns = [turn for turn in self._turns if turn.end_ms > needed_ms][-_TURNS_KEPT:]

    def _label(self, utterance: _Utterance) -> UtteranceSpeakers:
        """Return the runs of an utterance, from all that is known. Runs that the horizon has passed become fixed."""
        runs, text, begin = utterance.fixed, utterance.committed, utterance.fixed_chars
        ends = [begin + end for end in _word_ends(text[begin:])]
        spoken = [self._word(utterance, start, end) for start, end in pairwise([begin, *ends])]
        for end, word, who in zip(ends, spoken, self._speakers(spoken), strict=True):
            runs = _appended(runs, SpeakerRun(None if who is None else self.names.of(who), text[begin:end]))
            if begin == utterance.fixed_chars and self._is_settled(word):
                utterance.fixed, utterance.fixed_chars = runs, end
                if who is not None:
                    self.names.settle(who)
            begin = end
        settled = utterance.is_final and utterance.fixed_chars == len(text)
        return UtteranceSpeakers(utterance.sent.utterance, tuple(runs), settled)

    def _is_settled(self, word: Word) -> bool:
        return self.lost or word.end_ms <= self._settled_ms

    def _word(self, utterance: _Utterance, start: int, end: int) -> Word:
        """Return the word at these characters, with its times."""
        text = utterance.committed[start:end].strip()
        if (aligned := utterance.times_ms.get(end)) is not None:
            return Word(text, *aligned, TimeSource.ALIGNED)
        end_ms = self._time_ms(utterance.heard, end, begins=False)
        start_ms = min(end_ms, self._time_ms(utterance.heard, start, begins=True))
        return Word(text, start_ms, end_ms, TimeSource.ESTIMATED)

    def _time_ms(self, heard: Sequence[tuple[int, int]], chars: int, *, begins: bool) -> int:
        """Return the time at which the first `chars` characters end, or with `begins` the next character begins."""
        for (before, from_ms), (reached, to_ms) in pairwise(heard):
            if chars <= reached - begins:
                speech = _clipped(self._turns, from_ms, to_ms) or [(from_ms, to_ms)]
                left_ms = sum(end - start for start, end in speech) * (chars - before) / (reached - before)
                for start, end in speech:
                    if left_ms <= end - start + (-_ROUNDING_MS if begins else _ROUNDING_MS):
                        return round(start + left_ms)
                    left_ms -= end - start
        return heard[-1][1]

    def _speakers(self, spoken: Sequence[Word]) -> list[int | None]:
        if self.lost or not self._turns:
            return [None] * len(spoken)
        found = zip(spoken, assignment.speakers(spoken, self._turns), strict=True)
        return [who if self._is_near_a_turn(word) else None for word, who in found]

    def _is_near_a_turn(self, word: Word) -> bool:
        reach_ms = _SETTLED_REACH_MS if self._is_settled(word) else _REACH_MS
        return any(
            turn.start_ms - reach_ms <= word.end_ms and word.start_ms <= turn.end_ms + reach_ms for turn in self._turns
        )


def _outside(turns: Iterable[Turn], changed: Sequence[Turn]) -> Iterator[Turn]:
    """Yield the parts of turns outside the time that the changed turns replace."""
    replaced = _clipped(changed, 0, max((turn.end_ms for turn in changed), default=0))
    for turn in turns:
        start_ms = turn.start_ms
        for begin_ms, end_ms in [*replaced, (turn.end_ms, turn.end_ms)]:
            if start_ms < min(begin_ms, turn.end_ms):
                yield replace(turn, start_ms=start_ms, end_ms=min(begin_ms, turn.end_ms))
            start_ms = max(start_ms, end_ms)


def _clipped(turns: Sequence[Turn], start_ms: int, end_ms: int) -> list[tuple[int, int]]:
    """Return the time in [start_ms, end_ms) in which anybody speaks: regions in order, disjoint and not empty."""
    inside = ((max(start_ms, turn.start_ms), min(end_ms, turn.end_ms)) for turn in turns)
    return merged((begin, end) for begin, end in inside if begin < end)


def _word_ends(text: str) -> list[int]:
    """Return the position at which each word ends; the last one ends with the text."""
    spoken = words.split(text)
    gaps = words.gaps(text, spoken)
    ends = list(accumulate(len(gap) + len(word) for gap, word in zip(gaps, spoken, strict=True)))
    return [*ends[:-1], len(text)] if text else []


def _appended(runs: list[SpeakerRun], run: SpeakerRun) -> list[SpeakerRun]:
    if runs and runs[-1].speaker == run.speaker:
        return [*runs[:-1], SpeakerRun(run.speaker, runs[-1].text + run.text)]
    return [*runs, run]
