"""Whose the committed words of a live session are."""

import re
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asr_server.core.transcript import TimeSource, Word
from asr_server.features.speakers.diarization.turns import Turn
from asr_server.features.speakers.live_labels import SpeakerLabels
from asr_server.features.speakers.voices import NamedVoice
from asr_server.live.inference import WordTimestamps
from asr_server.live.machine.events import Ending, Final, Partial

_MS = 16  # samples


def _partial(text, end_ms, *, committed=None):
    committed = text if committed is None else committed
    return Partial(1, committed, text[len(committed) :], "English", 0, end_ms * _MS)


def _final(text, end_ms, *, start_ms=0, utterance=1):
    return Final(utterance, text, "English", start_ms * _MS, end_ms * _MS, Ending.PAUSE)


def _runs(speakers):
    return [(run.speaker, run.text) for run in speakers.runs]


def test_a_hypothesis_that_had_more_than_was_said_does_not_count():
    """A model may repeat one sound at an onset. The word was said between two other hypotheses."""
    labels = SpeakerLabels()
    labels.on_turns([Turn(0, 0, 1_000), Turn(1, 1_000, 2_000)], 0)
    labels.on_text(_partial("yes yes yes yes yes yes yes yes", 500, committed=""))
    labels.on_text(_partial("yes I think", 1_000))
    assert _runs(labels.on_text(_partial("yes I think no no", 2_000))) == [("A", "yes I think"), ("B", " no no")]


def test_no_word_is_said_in_a_pause():
    """A third of the text lies before the pause, and the rest behind it."""
    labels = SpeakerLabels()
    labels.on_turns([Turn(0, 0, 1_000), Turn(1, 4_000, 6_000)], 0)
    text = labels.on_text(_final("aaa bbb ccc ddd eee fff", 6_000))
    assert _runs(text) == [("A", "aaa bbb"), ("B", " ccc ddd eee fff")]


def test_a_label_is_refined_before_the_horizon_and_never_behind_it():
    labels = SpeakerLabels()
    labels.on_turns([Turn(0, 0, 2_000)], 1_000)
    labels.on_text(_partial("one two", 1_000))
    labels.on_text(_partial("one two three four", 2_000))
    (update,) = labels.on_turns([Turn(1, 0, 2_000)], 1_000)
    assert _runs(update) == [("A", "one two"), ("B", " three four")]


def test_changed_turns_replace_what_was_said_of_their_time_alone():
    labels = SpeakerLabels()
    labels.on_turns([Turn(0, 0, 3_000)], 0)
    labels.on_text(_partial("one two", 1_000))
    labels.on_text(_partial("one two three four", 2_000))
    labels.on_text(_partial("one two three four five six", 3_000))
    (update,) = labels.on_turns([Turn(1, 1_000, 2_000)], 0)
    assert _runs(update) == [("A", "one two"), ("B", " three four"), ("A", " five six")]


def test_aligned_times_count_more_than_estimates():
    """The estimate puts a long word over most of the time."""
    labels = SpeakerLabels()
    labels.on_turns([Turn(0, 0, 1_200), Turn(1, 1_200, 4_000)], 0)
    labels.on_text(_final("supercalifragilistic a b", 4_000))
    words = [("supercalifragilistic", 0, 1_000), ("a", 1_600, 2_000), ("b", 2_800, 3_200)]
    timed = WordTimestamps(1, tuple(Word(*word, TimeSource.ALIGNED) for word in words))
    assert [word.speaker for word in labels.on_words(timed).words] == ["A", "B", "B"]
    (update,) = labels.on_turns([], 3_300)
    assert _runs(update) == [("A", "supercalifragilistic"), ("B", " a b")]


def test_words_that_come_behind_the_horizon_have_the_labels_of_their_text():
    """An alignment takes its time, and labels do not change any more."""
    labels = SpeakerLabels()
    labels.on_turns([Turn(0, 0, 500), Turn(1, 500, 1_000)], 1_000)
    assert labels.on_text(_final("one two six ten", 1_000)).settled
    words = [Word(text, 900, 1_000, TimeSource.ALIGNED) for text in ("one", "two", "six", "ten")]
    assert [word.speaker for word in labels.on_words(WordTimestamps(1, tuple(words))).words] == ["A", "A", "B", "B"]


def test_without_more_turns_labels_stay_and_new_words_have_none():
    labels = SpeakerLabels()
    labels.on_turns([Turn(0, 0, 1_000)], 0)
    labels.on_text(_final("one two", 1_000))
    (update,) = labels.lose()
    assert (_runs(update), update.settled) == ([("A", "one two")], True)
    text = labels.on_text(_final("three four five", 4_000, start_ms=2_000, utterance=2))
    assert (_runs(text), text.settled) == ([(None, "three four five")], True)


_ANN = np.array([1, 0], np.float32)


def test_a_speaker_with_a_word_behind_the_horizon_keeps_the_letter():
    labels = SpeakerLabels()
    labels.on_turns([Turn(0, 0, 4_000)], 1_000)
    labels.on_text(_partial("one two", 1_000))
    labels.on_text(_partial("one two three four", 2_000))
    labels.names.recognise({0: _ANN}, [NamedVoice(name="Ann", voice_print=_ANN)])
    assert labels.on_turns([], 1_000) == []
    assert _runs(labels.on_text(_final("five six", 4_000, start_ms=3_000, utterance=2))) == [("A", "five six")]


_TURN = st.tuples(st.integers(0, 2), st.integers(0, 9_000), st.integers(1, 3_000))
_TURNS = st.lists(_TURN.map(lambda turn: Turn(turn[0], turn[1], turn[1] + turn[2])), max_size=3)
_TEXT = st.lists(st.sampled_from(["a", "ab", "你", " ", "a ", "b, ", "你。"]), min_size=1, max_size=6).map("".join)


@given(st.lists(st.tuples(_TEXT, _TURNS, st.integers(0, 1_500)), min_size=1, max_size=12))
def test_runs_are_the_committed_text_and_no_label_behind_the_horizon_changes(steps):
    labels, committed, settled_ms, shown = SpeakerLabels(), "", 0, []
    whole, fixed = [], 0  # up to which characters the words of each second are complete, and cannot change any more
    for number, (more, turns, moved_ms) in enumerate(steps, start=1):
        committed += more
        # A word is complete when another one follows.
        whole.append(max((word.end() for word in re.finditer(r"\S*\w\S*(?= .*\w)", committed)), default=0))
        end_ms = 1_000 * number
        text = labels.on_text(_partial(committed, end_ms) if number < len(steps) else _final(committed, end_ms))
        settled_ms += moved_ms
        for speakers in [text, *labels.on_turns(turns, settled_ms)]:
            assert "".join(run.text for run in speakers.runs) == committed
            assert all(run.speaker != behind.speaker for run, behind in pairwise(speakers.runs))
            before, shown = shown[:fixed], [run.speaker for run in speakers.runs for _ in run.text]
            assert shown[: len(before)] == before
        fixed = max([fixed, *whole[: settled_ms // 1_000]])
