"""Chapters by Markdown headings."""

from asr_server.features.speech_output.requests import Chapter, markdown_chapters


def test_each_heading_of_the_first_level_begins_a_chapter():
    """The heading's words are the title and are spoken; other levels, and signs within a line, begin none."""
    text = "Preface.\n\n# One\nText # with a sign.\n\n## Not a chapter\nMore.\n#No blank\n\n"
    text += "  # Two ##  \n\nEnd.\n# C#\nC."
    assert markdown_chapters(text) == (
        Chapter(title="", text="Preface.\n\n"),
        Chapter(title="One", text="One\n\nText # with a sign.\n\n## Not a chapter\nMore.\n#No blank"),
        Chapter(title="Two", text="Two\n\nEnd."),
        Chapter(title="C#", text="C#\n\nC."),
    )


def test_what_cannot_be_spoken_is_no_chapter():
    assert markdown_chapters("No heading.") == (Chapter(text="No heading."),)
    assert markdown_chapters("\n\n# Only a title") == (Chapter(title="Only a title", text="Only a title\n\n"),)
    assert markdown_chapters(" \n* * *\n") == ()
    assert markdown_chapters("# One #\r\nTwo.") == (Chapter(title="One", text="One\n\nTwo."),)
