"""The table of errors and their classes."""

import ast
from pathlib import Path

from asr_server.audio.decoder_wire import Outcome
from asr_server.core.errors import TABLE, AsrError, Overloaded

SOURCES = [path for path in Path(__file__).parents[1].rglob("*.py") if not path.name.endswith("_test.py")]


def _classes(root=AsrError):
    return [root, *(found for sub in root.__subclasses__() for found in _classes(sub))]


def test_every_code_that_is_raised_is_in_the_table():
    """A code that has a class is raised as that class, since other code catches it."""
    by_class = {kind.code for kind in _classes() if "code" in vars(kind)}
    named, names = set(Outcome) - {Outcome.END}, {kind.__name__ for kind in _classes()}
    for tree in (ast.parse(text) for path in SOURCES if "code=" in (text := path.read_text("utf-8"))):
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if getattr(call.func, "id", getattr(call.func, "attr", "")) in names:
                codes = [word.value for word in call.keywords if word.arg == "code"]
                named |= {code.value for code in codes if isinstance(code, ast.Constant)}
    assert named | by_class == set(TABLE)
    assert not named & by_class


def test_an_error_that_another_process_reports_is_caught_by_its_type():
    for kind in (kind for kind in _classes() if "code" in vars(kind)):
        found = AsrError.of(kind.code, "what happened", "file")
        assert isinstance(found, kind)
        assert (found.code, found.message, found.param) == (kind.code, "what happened", "file")


def test_retry_after_stays_where_clients_honour_it():
    """OpenAI's clients ignore hints outside 1..60 s."""
    assert Overloaded("x", retry_after_s=0).retry_after_s == 1
    assert Overloaded("x", retry_after_s=900).retry_after_s == 60
