"""The notes on results; the requests themselves run in E2Etest/cli."""

from asr_server.cli.remote_backend import notes
from asr_server.recordings.requests import Result, SubtitleRequest, TranslationRequest, WordTimes


def _notes(request, **fields):
    return notes(request, Result(b"", "text/plain", **fields))


def test_estimated_times_are_noted_only_where_aligned_ones_were_requested():
    """Aligned times need no note; untranslated lines always do."""
    sources = ("aligned", "mixed", "estimated", None)
    assert [len(_notes(SubtitleRequest(), time_source=source)) for source in sources] == [0, 1, 1, 0]
    assert _notes(SubtitleRequest(word_times=WordTimes.ESTIMATED), time_source="estimated") == ()
    assert "3 lines" in _notes(TranslationRequest(), untranslated=3)[0]
    assert _notes(TranslationRequest(), untranslated=0) == ()
