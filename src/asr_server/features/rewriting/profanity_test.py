"""The operator's lists of words."""

import pytest

from asr_server import feature_list
from asr_server.core.settings import Settings
from asr_server.engine.plan import PlanError
from asr_server.features.rewriting.edits import edited
from asr_server.features.rewriting.profanity import masked, read_lists
from asr_server.recordings.requests import Profanity


def test_whole_words_are_masked(tmp_path):
    (tmp_path / "en.txt").write_text("# mild\nheck\ndarn it\n\n")
    (tmp_path / "de.txt").write_text("Mist\n")
    lists = read_lists(tmp_path)
    for text, starred, hidden in (
        ("Heck, no!", "H***, no!", "****, no!"),
        ("Darn it. Darn you", "D*** i*. Darn you", "**** ****. Darn you"),
        ("heck's hecklers", "heck's hecklers", "heck's hecklers"),
    ):
        for how, expected in ((Profanity.MASK, starred), (Profanity.HIDE, hidden)):
            edits = list(masked(text, lists["en"], how))
            assert edited(text, edits) == expected
            assert {edit.kind for edit in edits} <= {"profanity"}


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("words.txt", b"heck", "not named after"),
        ("ja.txt", b"heck", "without spaces"),
        ("en.txt", b"\xff", "UTF-8"),
        ("en.txt", b"# nothing", "no words"),
        ("en.txt", b"a b c d e f g h i", "more than 8"),
        ("en.txt", b"heck\n" * 300_000, "larger than"),
        ("en.md", b"heck", "no file such as"),
        ("", b"", "it cannot be read"),  # there is no such folder
    ],
)
def test_a_list_that_cannot_be_used_stops_the_start(tmp_path, name, content, reason):
    folder = tmp_path / "lists"
    if name:
        folder.mkdir()
        (folder / name).write_bytes(content)
    with pytest.raises(PlanError, match=rf"PROFANITY_LISTS=.*{reason}"):
        feature_list.resolve(Settings(profanity_lists=str(folder)))
