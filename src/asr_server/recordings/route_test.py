"""The headers of results."""

from asr_server.recordings.requests import Result
from asr_server.recordings.route import headers_of


def test_what_is_known_of_a_result_is_in_headers():
    """Nothing untranslated is a figure too; what does not apply has no header."""
    assert headers_of(Result(b"{}", "application/json")) == {}
    subtitles = headers_of(Result(b"1", "text/plain", file_name="subtitles.srt", time_source="mixed"))
    assert subtitles == {
        "Content-Disposition": 'attachment; filename="subtitles.srt"',
        "X-Subtitle-Timing": "mixed",
    }
    translation = headers_of(Result(b"1", "text/plain", untranslated=0, translation_error="translation_failed"))
    assert translation == {"X-Untranslated": "0", "X-Translation-Error": "translation_failed"}
