"""Words to cues: the rules and what gives way to what, over many random transcripts."""

import random
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest

from asr_server.core.transcript import TimeSource, Word
from asr_server.subtitle import cue_segmentation
from asr_server.subtitle.conftest import VOCABULARY, text, transcripts
from asr_server.subtitle.cue_segmentation import Passage, units
from asr_server.subtitle.cues import CueConfig, SpeakerStyle, text_lines, with_names
from asr_server.text import words
from asr_server.text.words import measure
from E2Etest.cue_rules import LintRule, check

RULES = CueConfig()
# Six scripts: over 10,000 transcripts in the nightly run.
PER_SCRIPT = [60, pytest.param(1_700, marks=pytest.mark.nightly)]
NEVER = {*LintRule} - {LintRule.LINE_WIDTH, LintRule.MIN_GAP, LintRule.MIN_DURATION, LintRule.READING_SPEED}


def _plain(text):
    return "".join(text.split())


def _passage(text, step_ms=300, length_ms=300, start_ms=0, speaker=""):
    starts = ((word, start_ms + i * step_ms) for i, word in enumerate(words.split(text)))
    return Passage(text, [Word(word, at, at + length_ms, TimeSource.ALIGNED) for word, at in starts], speaker)


@pytest.mark.parametrize("per_script", PER_SCRIPT)
def test_all_rules_hold_or_give_way_as_documented(per_script):
    """Nothing lost, order, lines and longest time without exception; the others only for the reasons that are named."""
    for script in VOCABULARY:
        for number, one in enumerate(transcripts(script, per_script)):
            one.units = units(one.passages, RULES)
            one.cues = cue_segmentation.cues(one.passages, RULES)
            one.table = cue_segmentation.CostTable(one.units, RULES)
            one.borders = one.table.cheapest()
            _assert_nothing_is_lost(one, number)
            _assert_degradation(one, number)
            _assert_pauses(one, number)


def _assert_nothing_is_lost(divided, number):
    assert "".join(_plain(cue.text) for cue in divided.cues) == "".join(_plain(w.text) for w in divided.words), number
    for cue, (first, last) in zip(divided.cues, pairwise(divided.borders), strict=True):
        assert cue.start_ms == divided.units[first].start_ms
        assert len({unit.speaker for unit in divided.units[first:last]}) == 1, number
        assert cue.start_ms < cue.end_ms, number
        end_ms = divided.units[last - 1].end_ms
        if sum(cue.start_ms <= word.start_ms < end_ms for word in divided.words) > 1:
            # The cue is there while its words are said, but for the gap that the next one may need.
            assert cue.end_ms >= end_ms - 2 * RULES.min_gap_ms, number


def _assert_degradation(divided, number):
    single, borders = {_plain(word.text) for word in divided.words}, divided.borders
    for violation in check(divided.cues, RULES):
        where = (number, violation)
        at = violation.cue - 1
        cue = divided.cues[at]
        assert violation.rule not in NEVER, where
        if violation.rule is LintRule.LINE_WIDTH:
            assert [line for line in cue.lines if len(line) > 20 and _plain(line) in single], where
        elif violation.rule is LintRule.MIN_GAP:
            before = divided.cues[at - 1]
            assert cue.start_ms - before.start_ms <= 2 * RULES.min_gap_ms, where
        else:
            assert cue.end_ms - cue.start_ms == divided.table.longest_ms(*borders[at : at + 2]), where
        if violation.rule is LintRule.MIN_DURATION:
            for first, _, last in list(zip(borders, borders[1:], borders[2:], strict=False))[max(0, at - 1) : at + 1]:
                too_short = divided.table.longest_ms(first, last) < RULES.min_duration_ms
                assert last > divided.table.limits()[first] or too_short, where


def _assert_pauses(divided, number):
    table = divided.table
    starts = {unit.start_ms for unit in divided.units}
    for before, after in pairwise(divided.words):
        assert after.start_ms - before.end_ms < RULES.pause_ms or after.start_ms in starts, (number, after)
    for first, last in pairwise(divided.borders):
        for cut in range(first + 1, last):
            silence = divided.units[cut].start_ms - divided.units[cut - 1].end_ms
            if silence >= RULES.pause_ms:
                # One of the two cues would be too short or too fast.
                assert any(
                    table.longest_ms(a, b) < max(RULES.min_duration_ms, table.reading[b] - table.reading_before[a])
                    for a, b in ((first, cut), (cut, last))
                ), (number, first, cut, last)


def test_phrases_without_spaces_are_not_torn():
    """Japanese is broken between phrases, in lines and between cues, although every sign is a word."""
    text = "私たちは昨日は市場で古い友達に会ってとても長い話を聞きながら東京タワーの近くまで歩いて行って飲みました"
    lines = [line for cue in cue_segmentation.cues([_passage(text, 200, 200)], RULES) for line in cue.lines]
    assert set(accumulate(map(len, lines))) <= words.phrase_ends(text)


def test_control_characters_are_no_way_to_a_wide_line():
    """Control characters are not shown or measured: a line with one would seem to have no columns."""
    (cue, *_) = cues = cue_segmentation.cues([_passage(" ".join(["seven\x9bteen"] * 12))], RULES)
    assert " ".join(cue.lines[0].split()) == cue.lines[0]
    assert not {v.rule for v in check(cues, RULES)} & {LintRule.LINE_WIDTH, LintRule.LINES}


DASHES = CueConfig(speaker_style=SpeakerStyle.DASH)


def test_there_is_room_for_names():
    """A name that is shown before the text counts as columns, and as time to read it."""
    name = "Alexandra von Hohenstein"
    passages = [_passage("one two three four five", speaker=name), _passage("six", start_ms=1500, speaker="B")]
    cues = cue_segmentation.cues(passages, RULES)
    assert [(cue.speaker, cue.text) for cue in cues] == [(name, "one\ntwo three four five"), ("B", "six")]
    assert not [line for cue in with_names(cues) for line in cue.lines if len(line) > RULES.max_line_columns]
    (alone,) = cue_segmentation.cues(passages[:1], RULES)
    assert alone.end_ms == (len(name) + 2 + 23) * 1000 // 20


_ASK, _ANSWER = _passage("are you there?", speaker="A"), _passage("yes I am.", start_ms=950, speaker="B")
_SENTENCES = ["we all went home then when\nit had become very late.", "after that, there was\nnothing that we could do"]
_THAI = "เราไปเที่ยวทะเลกัน\nเมื่อวานผมเจอเพื่อนเก่าที่ตลาดดีมาก"
_LONG = "that is a question which\nnobody here would answer."


@pytest.mark.parametrize(
    ("passages", "rules", "shown"),
    [
        # A space is between passages of one script, none between those of another.
        ([_passage("one two"), _passage("three", start_ms=650)], RULES, ["one two three"]),
        ([_passage("今"), _passage("日", start_ms=350)], RULES, ["今日"]),
        # A sentence ends with its cue, though the cue before the comma could hold the beginning of the next sentence.
        ([_passage(" ".join(_SENTENCES).replace("\n", " "))], RULES, _SENTENCES),
        # A long clause is divided evenly. A space is the comma of Thai.
        ([_passage("seven77 " * 12, 600, 600)], RULES, ["seven77 seven77 seven77\nseven77 seven77 seven77"] * 2),
        ([_passage(_THAI.replace("\n", " "))], RULES, [_THAI]),
        # Silence has no subtitles.
        *((passages, RULES, []) for passages in ([], [Passage("", [])], [_passage("\x00 \x1b\x07")])),
        # Words that begin before the ones before them are moved on, not lost.
        ([_passage("one two", speaker="A"), _passage("three", speaker="B")], RULES, ["A: one two", "B: three"]),
        # A word that ends after the next begins leaves a silence below nothing, which is no division of it.
        ([_passage("one two three", length_ms=400)], CueConfig(pause_ms=0), ["one two three"]),
        # No style `none` mixes speakers, and it shows no names.
        ([_ASK, _ANSWER], CueConfig(speaker_style=SpeakerStyle.NONE), ["are you there?", "yes I am."]),
        # Two speakers have a line each with dashes; a third, a long text or a pause begins another cue.
        ([_ASK, _ANSWER], DASHES, ["- are you there?\n- yes I am."]),
        ([_ASK, _ANSWER, _passage("me.", 300, 300, 2000, "C")], DASHES, ["are you there?", "- yes I am.\n- me."]),
        ([_ASK, _passage(_LONG.replace("\n", " "), 300, 300, 950, "B")], DASHES, ["are you there?", _LONG]),
        ([_ASK, _passage("yes I am.", start_ms=4000, speaker="B")], DASHES, ["are you there?", "yes I am."]),
        ([_ASK, _ANSWER], replace(DASHES, max_lines=1), ["are you there?", "yes I am."]),
    ],
)
def test_passages_share_a_cue_or_follow_each_other(passages, rules, shown):
    cues = cue_segmentation.cues(passages, rules)
    names = [f"{cue.speaker}: " if cue.speaker else "" for cue in cues]
    assert [name + cue.text for name, cue in zip(names, cues, strict=True)] == shown
    assert all(cue.start_ms < cue.end_ms for cue in cues)
    assert all(before.end_ms <= after.start_ms for before, after in pairwise(cues))


@pytest.mark.parametrize(
    "rules", [RULES, CueConfig(max_lines=1), CueConfig(max_lines=3, max_line_columns=20), CueConfig(pause_ms=0), DASHES]
)
@pytest.mark.parametrize("cut_off", [False, True])
@pytest.mark.parametrize("count", [12, pytest.param(60, marks=pytest.mark.nightly)])
def test_neither_other_rules_nor_the_end_of_a_recording_break_a_rule(rules, cut_off, count):
    """Every word is there, and no cue with dashes is too wide, also if the recording is cut off after it."""
    for script in VOCABULARY:
        for one in transcripts(script, 100 if rules is RULES and cut_off else count, seed=2):
            over_ms = one.words[-1].end_ms + 30
            cues = cue_segmentation.cues(one.passages, rules, *[over_ms] * cut_off)
            violations = check(cues, rules)
            assert not {v.rule for v in violations} & NEVER, script
            wide = [cues[v.cue - 1] for v in violations if v.rule is LintRule.LINE_WIDTH]
            assert not [cue for cue in wide if cue.text.startswith("- ")], script
            if cut_off:
                last_ms = max(over_ms, units(one.passages, rules)[-1].end_ms)
                assert max(cue.end_ms for cue in cues) <= last_ms, script
            said = "".join(_plain(line.removeprefix("- ")) for cue in cues for line in cue.lines)
            assert said == "".join(_plain(w.text) for w in one.words), script


def test_texts_are_laid_out_as_readers_expect():
    """A text has one line if it fits, else balanced ones that break where the sense does."""
    for laid in (
        "",
        "short enough",
        "a text that is just a\nlittle too long for a line",
        "first there is a clause,\nand then comes what follows",
        "One sentence is here.\nAnother one is there now.",
        "Die Sitzung des Bundestages findet\nam 3. Oktober in Berlin statt.",
        "and then there was nobody\nelse but Mr. Jones left",
    ):
        assert cue_segmentation.relayout(laid.replace("\n", "  "), RULES) == laid
    japanese = "今日はとても良い天気ですね。\n明日も東京タワーへ行きましょう。"
    assert cue_segmentation.relayout(japanese.replace("\n", ""), RULES) == japanese


def test_nothing_is_lost_and_no_line_is_too_wide():
    """A word that is wider than a line is the exception; a long text has more lines than a cue should have."""
    for script in VOCABULARY:
        rng = random.Random(6)
        for _ in range(80):
            given = text(rng, script, rng.randint(1, 30))
            laid = cue_segmentation.relayout(given, RULES)
            assert "".join(laid.split()) == "".join(given.split()), script
            for line in laid.split("\n"):
                assert line == line.strip() != "", script
                assert measure(line).columns <= RULES.max_line_columns or len(line.split()) == 1, script


def test_marks_that_turn_the_direction_are_not_shown():
    """Direction marks are removed from cues, as they would change the direction of the text around them."""
    assert text_lines("turn \u202eon\u2069 it") == ["turn on it"]
