"""Words to cues: the rules and what gives way to what, over many random transcripts."""

import random
import textwrap
from itertools import combinations, pairwise

import pytest

from asr_server.core.transcript import TimeSource, Word
from asr_server.subtitle import cue_segmentation
from asr_server.subtitle.conftest import VOCABULARY, text, transcript, transcripts
from asr_server.subtitle.cue_segmentation import Passage, units
from asr_server.subtitle.cues import CueConfig, SpeakerStyle, text_lines, with_names
from asr_server.text import words
from asr_server.text.words import measure
from E2Etest.cue_rules import LintRule, check

RULES = CueConfig()
# Six scripts: over 10,000 transcripts in the nightly run.
PER_SCRIPT = [60, pytest.param(1_700, marks=pytest.mark.nightly)]
NEVER = {
    LintRule.EMPTY,
    LintRule.ORDER,
    LintRule.OVERLAP,
    LintRule.MAX_DURATION,
    LintRule.LINES,
    LintRule.LINE_START,
    LintRule.LINE_END,
}


def _plain(text):
    return "".join(text.split())


def _passage(text, step_ms=300, length_ms=300, start_ms=0, speaker=""):
    times = [(start_ms + i * step_ms, start_ms + i * step_ms + length_ms) for i in range(len(text.split()))]
    words = [Word(w, a, b, TimeSource.ALIGNED) for w, (a, b) in zip(text.split(), times, strict=True)]
    return Passage(text, words, speaker)


class Divided:
    """A transcript, its units, and the cues made of it."""

    def __init__(self, script):
        self.words = script.words
        self.units = units(script.passages, RULES)
        self.cues = cue_segmentation.cues(script.passages, RULES)
        self.table = cue_segmentation.CostTable(self.units, RULES)
        self.limits = self.table.limits()
        self.borders = self.table.cheapest()

    def longest_ms(self, number):
        """Return how long cue `number` (from 0) may be shown."""
        return self.table.longest_ms(*self.borders[number : number + 2])

    def joint_is_long_enough(self, number):
        """True if cues `number` and the next could be one that is not too short."""
        if not 0 <= number < len(self.cues) - 1:
            return False
        first, last = self.borders[number], self.borders[number + 2]
        return last <= self.limits[first] and self.table.longest_ms(first, last) >= RULES.min_duration_ms

    def is_lacking(self, first, last):
        """True if a cue of these units would be too short or too fast."""
        needed = self.table.reading[last] - self.table.reading_before[first]
        return self.table.longest_ms(first, last) < max(RULES.min_duration_ms, needed)


@pytest.mark.parametrize("per_script", PER_SCRIPT)
def test_all_rules_hold_or_give_way_as_documented(per_script):
    """Nothing lost, order, lines and longest time without exception; the others only for the reasons that are named."""
    for script in VOCABULARY:
        for number, one in enumerate(transcripts(script, per_script)):
            divided = Divided(one)
            _assert_nothing_is_lost(divided, number)
            _assert_degradation(divided, number)
            _assert_pauses(divided, number)


def _assert_nothing_is_lost(divided, number):
    assert "".join(_plain(cue.text) for cue in divided.cues) == "".join(_plain(w.text) for w in divided.words), number
    for cue, (first, last) in zip(divided.cues, pairwise(divided.borders), strict=True):
        assert cue.start_ms == divided.units[first].start_ms
        assert len({unit.speaker for unit in divided.units[first:last]}) == 1, number
        assert cue.start_ms < cue.end_ms, number
        if len(_spoken_in(divided, first, last)) > 1:
            # The cue is there while its words are said, but for the gap that the next one may need.
            assert cue.end_ms >= divided.units[last - 1].end_ms - 2 * RULES.min_gap_ms, number


def _spoken_in(divided, first, last):
    times = (divided.units[first].start_ms, divided.units[last - 1].end_ms)
    return [word for word in divided.words if times[0] <= word.start_ms < times[1]]


def _assert_degradation(divided, number):
    single = {_plain(word.text) for word in divided.words}
    for violation in check(divided.cues, RULES):
        where = (number, violation)
        at = violation.cue - 1
        cue = divided.cues[at]
        assert violation.rule not in NEVER, where
        if violation.rule is LintRule.LINE_WIDTH:
            wide = [line for line in cue.lines if len(line) > 20 and _plain(line) in single]
            assert wide, where
        elif violation.rule is LintRule.MIN_GAP:
            before = divided.cues[at - 1]
            assert cue.start_ms - before.start_ms <= 2 * RULES.min_gap_ms, where
        else:
            assert cue.end_ms - cue.start_ms == divided.longest_ms(at), where
        if violation.rule is LintRule.MIN_DURATION:
            assert not divided.joint_is_long_enough(at - 1), where
            assert not divided.joint_is_long_enough(at), where


def _assert_pauses(divided, number):
    starts = {unit.start_ms for unit in divided.units}
    for before, after in pairwise(divided.words):
        assert after.start_ms - before.end_ms < RULES.pause_ms or after.start_ms in starts, (number, after)
    for first, last in pairwise(divided.borders):
        for cut in range(first + 1, last):
            silence = divided.units[cut].start_ms - divided.units[cut - 1].end_ms
            if silence >= RULES.pause_ms:
                assert divided.is_lacking(first, cut) or divided.is_lacking(cut, last), (number, first, cut, last)


def test_the_division_is_the_cheapest_of_all():
    """The table finds what trying every division finds."""
    rng, tried = random.Random(5), 0
    while tried < 60:
        spoken = units(transcript(rng, "latin").passages, RULES)
        if len(spoken) > 10:
            continue
        tried += 1
        table = cue_segmentation.CostTable(spoken, RULES)
        limits, count = table.limits(), len(spoken)

        def cost(borders, table=table, limits=limits):
            if any(b > limits[a] for a, b in pairwise(borders)):
                return float("inf")
            return sum(list(table.costs(a, b))[-1] for a, b in pairwise(borders))

        inner = range(1, count)
        every = (c for n in range(count) for c in combinations(inner, n))
        best = min(cost([0, *chosen, count]) for chosen in every)
        assert cost(table.cheapest()) == pytest.approx(best)


@pytest.mark.parametrize(
    "shown",
    [
        # Cues end with sentences where nothing else matters.
        [
            "this is the first sentence of the text that we have here today.",
            "and this is the second one that follows it.",
        ],
        # Though the cue before the comma could hold the beginning of the next sentence.
        ["we all went home then when it had become quite late.", "after that, there was nothing that we could do now"],
    ],
)
def test_the_end_of_a_sentence_is_that_of_a_cue(shown):
    cues = cue_segmentation.cues([_passage(" ".join(shown))], RULES)
    assert [cue.text.replace("\n", " ") for cue in cues] == shown


def test_a_long_clause_is_divided_evenly():
    """The parts are not one full cue and one with what is left."""
    first, second = cue_segmentation.cues([_passage("seven77 " * 12, step_ms=600, length_ms=600)], RULES)
    assert len(first.text) == len(second.text)


def test_a_pause_is_bridged_where_a_part_would_be_too_fast_to_read():
    """Fast speech before a short pause borrows the time after it."""
    passages = [_passage("abcdefghij " * 5, step_ms=100, length_ms=100), _passage("and so on", 100, 100, 1000)]
    assert len(cue_segmentation.cues(passages, RULES)) == 1
    unhurried = [_passage("abcdefghij " * 5, step_ms=600, length_ms=600), _passage("and so on", 400, 400, 3500)]
    assert len(cue_segmentation.cues(unhurried, RULES)) == 2


def test_phrases_without_spaces_are_not_torn():
    """Japanese is broken between phrases, in lines and between cues, although every sign is a word."""
    for subject in ("", "私は", "私たちは", "あの人たちは"):
        text = (
            f"{subject}昨日は市場で古い友達に会ってとても長い話を聞きながら東京タワーの近くまで歩いて行って飲みました"
        )
        timed = [Word(w, 200 * i, 200 * i + 200, TimeSource.ALIGNED) for i, w in enumerate(words.split(text))]
        ends, offset = words.phrase_ends(text), 0
        for line in (line for cue in cue_segmentation.cues([Passage(text, timed)], RULES) for line in cue.lines):
            offset += len(line)
            assert offset in ends


def test_a_space_is_the_comma_of_thai():
    """A line ends there rather than where both lines would be alike."""
    text = "เราไปเที่ยวทะเลกัน เมื่อวานผมเจอเพื่อนเก่าที่ตลาดดีมาก"
    timed = [Word(w, 300 * i, 300 * i + 300, TimeSource.ALIGNED) for i, w in enumerate(words.split(text))]
    (cue,) = cue_segmentation.cues([Passage(text, timed)], RULES)
    assert cue.lines == text.split()


def test_a_cue_stays_for_its_reading_time():
    """Fast speech before a silence is shown until it is read; a short word for the shortest time."""
    passages = [_passage("abcdefghij " * 4, step_ms=100, length_ms=100), _passage("no", start_ms=6000)]
    first, last = cue_segmentation.cues(passages, RULES)
    assert first.end_ms == 43 * 1000 // 20
    assert last.end_ms - last.start_ms == RULES.min_duration_ms


def test_no_cue_is_shown_beyond_the_end_of_the_recording():
    """The last one is taken away there, rather than read to its end; one that has no time left joins the one before."""
    assert cue_segmentation.cues([_passage("stop", length_ms=400)], RULES, 500)[-1].end_ms == 500
    passages = [_passage("one two three. four", step_ms=300, length_ms=300)]
    assert [(cue.text, cue.end_ms) for cue in cue_segmentation.cues(passages, RULES, 1250)] == [
        ("one two three. four", 1200)
    ]


def test_control_characters_are_no_way_to_a_wide_line():
    """Control characters are not shown, so they are not measured: else a line that has one would seem to have no
    columns."""
    (cue, *_) = cues = cue_segmentation.cues([_passage(" ".join(["seven\x9bteen"] * 12))], RULES)
    assert " ".join(cue.lines[0].split()) == cue.lines[0]
    assert not {v.rule for v in check(cues, RULES)} & {LintRule.LINE_WIDTH, LintRule.LINES}


def test_a_title_is_not_torn_from_its_name():
    """Neither a cue nor a line ends with one, as if its point ended a sentence."""
    said = "and in the end nobody was left in the house but Mr. Jones who had lived there with old Mrs. Jones for ever"
    shown = [line for cue in cue_segmentation.cues([_passage(said)], RULES) for line in cue.lines]
    assert not [line for line in shown if line.endswith(".")]


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
_LONG = "that is a question which nobody here would answer."


@pytest.mark.parametrize(
    ("passages", "rules", "shown"),
    [
        # A space is between passages of one script, none between those of another.
        ([_passage("one two"), _passage("three", start_ms=650)], RULES, ["one two three"]),
        ([_passage("今"), _passage("日", start_ms=350)], RULES, ["今日"]),
        # Silence has no subtitles.
        *((passages, RULES, []) for passages in ([], [Passage("", [])], [_passage("\x00 \x1b\x07")])),
        # Words that begin before the ones before them are moved on, not lost.
        (
            [_passage("one two three", speaker="A"), _passage("four five six", speaker="B")],
            RULES,
            ["A: one two three", "B: four five six"],
        ),
        # A word that ends after the next begins leaves a silence below nothing, which is no division of it.
        ([_passage("one two three", length_ms=400)], CueConfig(pause_ms=0), ["one two three"]),
        # No style `none` mixes speakers, and it shows no names.
        (
            [_passage("one", speaker="A"), _passage("two", start_ms=350, speaker="B")],
            CueConfig(speaker_style=SpeakerStyle.NONE),
            ["one", "two"],
        ),
        # Two speakers have a line each with dashes; a third, a long text or a pause begins another cue.
        ([_ASK, _ANSWER], DASHES, ["- are you there?\n- yes I am."]),
        (
            [_ASK, _ANSWER, _passage("me too.", start_ms=2000, speaker="C")],
            DASHES,
            ["are you there?", "- yes I am.\n- me too."],
        ),
        (
            [_ASK, _passage(_LONG, start_ms=950, speaker="B")],
            DASHES,
            ["are you there?", _LONG.replace(" nobody", "\nnobody")],
        ),
        ([_ASK, _passage("yes I am.", start_ms=4000, speaker="B")], DASHES, ["are you there?", "yes I am."]),
        (
            [_ASK, _ANSWER],
            CueConfig(speaker_style=SpeakerStyle.DASH, max_lines=1),
            ["are you there?", "yes I am."],
        ),
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
    """A fault that may not happen by the default numbers does not happen by others, nor where the recording is cut off
    after the last word: every word is there, and no cue with dashes is too wide."""
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
    cases = [
        ("short enough", "short enough"),
        ("a text that is just a little too long for a line", "a text that is just a\nlittle too long for a line"),
        (
            "first there is a clause, and then comes what follows",
            "first there is a clause,\nand then comes what follows",
        ),
        ("One sentence is here. Another one is there now.", "One sentence is here.\nAnother one is there now."),
        (
            "今日はとても良い天気ですね。明日も東京タワーへ行きましょう。",
            "今日はとても良い天気ですね。\n明日も東京タワーへ行きましょう。",
        ),
        (
            "Die Sitzung des Bundestages findet am 3. Oktober in Berlin statt.",
            "Die Sitzung des Bundestages findet\nam 3. Oktober in Berlin statt.",
        ),
        ("and then there was nobody else but Mr. Jones left", "and then there was nobody\nelse but Mr. Jones left"),
        ("already\nlaid   out", "already laid out"),
        ("", ""),
    ]
    for given, laid in cases:
        assert cue_segmentation.relayout(given, RULES) == laid, (given, laid)


def test_nothing_is_lost_and_no_line_is_too_wide():
    """A word that is wider than a line is the exception; a long text has more lines than a cue should have, not wider
    ones, and as few as the same lines filled to the brim would be."""
    for script in VOCABULARY:
        rng = random.Random(6)
        for _ in range(80):
            given = text(rng, script, rng.randint(1, 30))
            laid = cue_segmentation.relayout(given, RULES)
            assert "".join(laid.split()) == "".join(given.split()), script
            for line in laid.split("\n"):
                assert line == line.strip() != "", script
                assert measure(line).columns <= RULES.max_line_columns or len(line.split()) == 1, script
            if script == "latin":
                filled = textwrap.wrap(given, RULES.max_line_columns, break_long_words=False, break_on_hyphens=False)
                assert laid.count("\n") + 1 == len(filled)


def test_marks_that_turn_the_direction_are_not_shown():
    """Direction marks are removed from cues, as they would change the direction of the text around them."""
    assert text_lines("turn \u202eon\u2069 it") == ["turn on it"]
