"""docs/promises.md: every promise is shown by a test, and the page says what was measured."""

import re
from pathlib import Path

from E2Etest import promises
from E2Etest.promises import PAGE, PROMISES, Shown

HERE = Path(__file__).parent
SHOWN_BY = re.compile(r'mark\.promise\("([\w-]+)"\)')


def _rows(page):
    return {row.split(" | ")[0].removeprefix("| "): row for row in page.splitlines() if row.count(" | ") == 4}


def test_every_promise_is_shown_and_nothing_else():
    """The names at the tests are those of the table."""
    names = [n for path in HERE.rglob("test_*.py") for n in SHOWN_BY.findall(path.read_text(encoding="utf-8"))]
    assert set(names) == set(PROMISES)


def test_the_page_has_a_row_for_each_measured_and_none_failed():
    """With its bound as it is held, and links to the tests."""
    rows = _rows(PAGE.read_text(encoding="utf-8"))
    for promise, bound in PROMISES.values():
        _, told_bound, measured, day, links = rows[promise].strip(" |").split(" | ")
        assert told_bound == bound
        assert measured
        assert "failed" not in measured
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", day)
        for link in re.findall(r"\]\(\.\./(.*?)\)", links):
            assert SHOWN_BY.search((HERE.parent / link).read_text(encoding="utf-8"))


def test_what_was_not_run_again_stays_on_the_page():
    """A part of the promises can be measured anew; a failure is told in place of a figure."""
    first = promises.page([Shown("E2Etest/chaos/test_a.py::test_b", "drain", "passed", ["exit 0 in 3 s"])])
    assert "exit 0 in 3 s" in _rows(first)["SIGTERM loses nothing"]
    again = promises.page([Shown("E2Etest/chaos/test_c.py::test_d", "logs", "failed")], first)
    assert _rows(again)["SIGTERM loses nothing"] == _rows(first)["SIGTERM loses nothing"]
    assert "**failed: test_d**" in _rows(again)["Logs hold nothing that was said, named or secret"]
