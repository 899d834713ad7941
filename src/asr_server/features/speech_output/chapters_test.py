"""Chapters by Markdown headings."""

from asr_server.features.speech_output.chapters import Chapter, markdown_chapters


def test_each_heading_of_the_first_level_begins_a_chapter():
    """The heading's words are the title and are spoken; other levels, and signs within a line, begin none."""
    text = "Preface.\n\n# One\nText # with a sign.\n\n## Not a chapter\nMore.\n#No blank\n\n  # Two ##  \n\nEnd.\n"
    assert markdown_chapters(text) == [
        Chapter("", "Preface.\n\n"),
        Chapter("One", "One\n\nText # with a sign.\n\n## Not a chapter\nMore.\n#No blank"),
        Chapter("Two", "Two\n\nEnd."),
    ]


def test_what_cannot_be_spoken_is_no_chapter():
    """A text without headings is one chapter, blanks before the first one are none."""
    assert markdown_chapters("No heading.") == [Chapter("", "No heading.")]
    assert markdown_chapters("\n\n# Only a title") == [Chapter("Only a title", "Only a title\n\n")]
    assert markdown_chapters(" \n* * *\n") == []
