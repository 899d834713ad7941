"""What language models write around and instead of what was asked for."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.translator.response import read

IDS = ("101", "102", "103")
RIGHT = {"101": "eins", "102": "zwei", "103": "drei"}
JSON = json.dumps(RIGHT)


@pytest.mark.parametrize(
    "written",
    [
        JSON,
        f"```json\n{JSON}\n```",
        f"Sure! Here it is:\n\n{JSON}\n\nAnything else? [1] {{x}}",
        f'<think>{{"101": "one"}} hm, 3 < 4</think>\n{JSON}',
        f"the opening tag was cut off by the server </think>{JSON}",
        json.dumps({"translations": RIGHT}),
        json.dumps({"note": "done", "lines": RIGHT}),
        json.dumps([{"id": k, "text": v} for k, v in RIGHT.items()]),
        json.dumps({"lines": [{"line": int(k), "translation": v} for k, v in RIGHT.items()]}),
        '{"103": "drei", "101": "eins", "102": "zwei"}',
        '{"101": " eins\n", "102": "zwei", "103": "drei"}',
        '{"101": "eins", "101": "eins", "102": "zwei", "103": "drei"}',
    ],
)
def test_all_of_a_right_answer_is_found_in_any_dress(written):
    """Fences, prose, thoughts, wrappers, lists, another order, raw line breaks in strings."""
    assert read(written, IDS) == RIGHT


@pytest.mark.parametrize(
    "written",
    [
        "",
        "I cannot help with that.",
        "null",
        "[]",
        "{}",
        "{" * 100_000,
        "[" * 100_000,
        '{"1": "eins", "2": "zwei", "3": "drei"}',
        '{"100": "null", "101": "eins", "102": "zwei"}',
        '{"101": "eins und zwei", "102": "drei"}',
        '{"101": "eins", "102": "zwei", "103": "drei", "104": "vier"}',
        '{"101": "eins", "102": "zwei", "103": null}',
        f"<think>{JSON}",
        "{'101': 'eins'}",
    ],
)
def test_what_may_belong_to_other_lines_is_not_trusted(written):
    """Numbered anew, merged with the rest moved up, a line too many, no JSON, thoughts without an answer: nothing."""
    assert read(written, IDS) == {}


@pytest.mark.parametrize(
    ("written", "known"),
    [
        ('{"101": "eins", "103": "drei"}', {"101", "103"}),
        ('{"101": "eins", "102": "zwei", "103": "dr', {"101", "102"}),
        ('```json\n{"101": "eins", "102": "zw', {"101"}),
        ('[{"id": "101", "text": "eins"}, {"id": "102", "text"', {"101"}),
        ('{"101": "eins", "101": "zwei", "102": "zwei", "103": "drei"}', {"102", "103"}),
        ('{"101": "eins", "102": 2, "103": "drei"}', {"101", "103"}),
    ],
)
def test_a_gap_costs_only_its_own_line(written, known):
    """A line left out in the middle, a cut, a contradiction, a number for a text: the others stand."""
    assert read(written, IDS) == {name: RIGHT[name] for name in known}


@pytest.mark.parametrize(
    "written", ['{"101": "eins"}', '{"1": "eins"}', '{"translation": "eins"}', '[{"id": 1, "t": "eins"}]']
)
def test_a_lone_line_may_be_called_anything(written):
    """There is one line and one text: no mistake is possible."""
    assert read(written, ("101",)) == {"101": "eins"}


@pytest.mark.parametrize("written", ["eins", '{"101": "ei', '{"1": "eins", "2": "zwei"}'])
def test_a_lone_line_wants_one_whole_text(written):
    """Bare prose may be an excuse, a cut text is half a line, and of two texts either may be the one."""
    assert read(written, ("101",)) == {}


@given(st.text(alphabet='{}[]"\\,: 123abc\n<think>/', max_size=80), st.integers(1, 4))
def test_no_text_whatever_is_an_error_or_an_unasked_id(written, count):
    """Reading never raises, and gives texts for ids that were asked."""
    ids = tuple(str(n) for n in range(1, count + 1))
    found = read(written, ids)
    assert set(found) <= set(ids)
    assert all(isinstance(text, str) for text in found.values())


@given(st.lists(st.text(max_size=6), min_size=2, max_size=6), st.integers(0, 200))
def test_an_answer_cut_anywhere_gives_only_right_texts(texts, cut):
    """Whatever byte a token limit hits, what is read is what stood there."""
    right = {str(101 + i): text.strip() for i, text in enumerate(texts)}
    found = read(json.dumps(right, ensure_ascii=False)[: cut + 1], tuple(right))
    assert found.items() <= right.items()


def test_a_line_repeated_without_end_is_read_in_one_go():
    """A model in a loop repeats one pair by the ten thousand: comparing each with each would take minutes."""
    assert read("{" + '"101": "eins", ' * 200_000 + '"102": "zwei", "103": "drei"}', IDS) == RIGHT
    assert read("{" + '"101": "eins", ' * 200_000 + '"101": "zwei", "103": "drei"}', IDS) == {"103": "drei"}
