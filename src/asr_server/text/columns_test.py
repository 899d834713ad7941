"""Display columns."""

from asr_server.text.columns import measure


def test_columns_are_counted_as_they_are_shown():
    """Two for CJK, none for combining marks."""
    cases = [
        ("abc", (3, 0)),
        ("你好", (4, 2)),
        ("é", (1, 0)),
        ("e\u0301", (1, 0)),
        ("한글 x", (6, 2)),
        ("กำลัง", (4, 0)),
        ("", (0, 0)),
    ]
    for text, width in cases:
        assert measure(text) == width, (text, width)
