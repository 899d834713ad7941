"""Display columns."""

import pytest

from asr_server.text.columns import measure


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("abc", (3, 0)),
        ("你好", (4, 2)),
        ("é", (1, 0)),
        ("e\u0301", (1, 0)),
        ("한글 x", (6, 2)),
        ("กำลัง", (4, 0)),
        ("", (0, 0)),
    ],
)
def test_columns_are_counted_as_they_are_shown(text, width):
    """Two for CJK, none for combining marks."""
    assert measure(text) == width
