"""Results as HTTP responses."""

from asr_server.recordings.requests import Result
from asr_server.recordings.responses import render


def test_what_is_known_of_a_result_is_in_headers():
    """Nothing untranslated is a figure too; what does not apply has no header."""
    plain = render(Result(b"{}", "application/json"), {"Server-Timing": "total;dur=1.0"})
    assert set(plain.headers) == {"content-length", "content-type", "server-timing"}
    assert (plain.body, plain.media_type) == (b"{}", "application/json")
    subtitles = render(Result(b"1", "text/plain", file_name="subtitles.srt", time_source="mixed")).headers
    assert subtitles["content-disposition"] == 'attachment; filename="subtitles.srt"'
    assert subtitles["x-subtitle-timing"] == "mixed"
    translation = render(Result(b"1", "text/plain", untranslated=0, translation_error="translation_failed")).headers
    assert (translation["x-untranslated"], translation["x-translation-error"]) == ("0", "translation_failed")
