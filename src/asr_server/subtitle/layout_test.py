"""Lines."""

import random

from asr_server.subtitle import layout
from asr_server.subtitle.conftest import VOCABULARY, text
from asr_server.subtitle.cue_config import CueConfig
from asr_server.text.columns import measure

RULES = CueConfig()


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
        assert layout.relayout(given, RULES) == laid, (given, laid)


def test_nothing_is_lost_and_no_line_is_too_wide():
    """A word that is wider than a line is the exception; a long text has more lines than a cue should have, not wider
    ones."""
    for script in VOCABULARY:
        rng = random.Random(6)
        for _ in range(200):
            given = text(rng, script, rng.randint(1, 30))
            laid = layout.relayout(given, RULES)
            assert "".join(laid.split()) == "".join(given.split()), script
            for line in laid.split("\n"):
                assert line == line.strip() != "", script
                assert measure(line).columns <= RULES.max_line_columns or len(line.split()) == 1, script


def test_no_more_lines_than_needed():
    """Lines are as few as the same lines filled to the brim would be."""
    rng = random.Random(7)
    for _ in range(200):
        given = text(rng, "latin", rng.randint(1, 30))
        greedy, line = 1, ""
        for word in layout.relayout(given, RULES).split():
            longer = f"{line} {word}".strip()
            if line and len(longer) > RULES.max_line_columns:
                greedy, line = greedy + 1, word
            else:
                line = longer
        assert layout.relayout(given, RULES).count("\n") + 1 == greedy
