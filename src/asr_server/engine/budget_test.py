"""The most tokens of an answer."""

import pytest

from asr_server.core.audio import s_to_samples
from asr_server.engine.budget import token_budget
from asr_server.engine.loops import loop
from asr_server.engine.protocol import Finish
from asr_server.engine.row import Row
from asr_server.text.syllables import syllables
from asr_training.sentences import ARTICLE_1, SENTENCES

# Syllables a second, 1.5 times the average of the fastest of seven languages, Japanese (Pellegrino, Coupé and Marsico,
# "A cross-language perspective on speech information rate", Language 87, 2011).
FAST = 1.5 * 7.84
TEXTS = [*SENTENCES.items(), *ARTICLE_1.items()]


def test_the_budget_follows_the_audio():
    """40 tokens a second, never under 32: no constant that truncates long speech."""
    assert [token_budget(16_000 * seconds) for seconds in (0, 1, 10, 30)] == [32, 40, 400, 1200]


@pytest.mark.torch
@pytest.mark.parametrize(("language", "text"), TEXTS)
def test_fast_speech_of_every_language_stays_inside_the_budget(released_tokenizer, language, text):
    """The budget is in tokens of the released models, with the words that name the language."""
    spoken_s = sum(syllables(word, language) for word in text.split()) / FAST
    answer = released_tokenizer(f"language {language}<asr_text>{text}").input_ids
    assert len(answer) <= token_budget(s_to_samples(spoken_s))


def test_a_runaway_that_repeats_itself_ends_long_before_the_budget():
    """After 40 tokens, a loop of any length that is detected ends after six turns or 48 tokens."""
    budget = token_budget(s_to_samples(30))
    for unit in range(1, 65):
        row = Row(key=0, budget=budget)
        while not row.finished:
            place = len(row.ids)
            row.note([place if place < 40 else 1_000 + (place - 40) % unit], [0.0], frozenset())
        assert row.finish is Finish.LOOP
        assert len(row.ids) == 40 + max(48, 6 * unit) <= budget / 2.5


def test_a_runaway_that_never_repeats_itself_costs_the_budget():
    """1,200 passes for a span of 30 s, 3.3 times as many as for the longest answer that is expected, and no more."""
    row = Row(key=0, budget=token_budget(s_to_samples(30)))
    while not row.finished:
        row.note([len(row.ids)], [0.0], frozenset())
    assert row.finish is Finish.BUDGET
    assert not loop(row.ids)
    assert row.passes == 1_200
