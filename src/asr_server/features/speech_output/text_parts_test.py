"""Long texts in parts."""

from asr_server.features.speech_output.chapters import Chapter
from asr_server.features.speech_output.script import spoken_s
from asr_server.features.speech_output.text_parts import dumped, loaded, text_parts
from asr_server.text.sentences import sentences

LONG = Chapter("Long", "This is a sentence of some length, which ends here.  \n" * 200)
SHORT = Chapter("", "  Short. ")


def test_parts_have_every_sentence_once_in_its_place():
    """Each is part of one chapter and about two minutes long; `begin` counts the characters of all chapters."""
    chapters = (SHORT, LONG, SHORT)
    parts = text_parts(chapters, "en")
    whole = "".join(chapter.text for chapter in chapters)
    assert [whole[part.begin :][: len(part.text)] for part in parts] == [part.text for part in parts]
    assert [part.chapter for part in parts] == [0, *[1] * (len(parts) - 2), 2]
    spoken = [span.text for part in parts for span in sentences(part.text, "en")]
    assert spoken == [span.text for chapter in chapters for span in sentences(chapter.text, "en")]
    assert all(60 < spoken_s(part.text) < 180 for part in parts[1:-2])


def test_stored_chapters_are_read_as_they_were():
    """In any script."""
    chapters = (Chapter("第一章", "こんにちは。\u2028"), SHORT)
    assert loaded(dumped(chapters)) == chapters
