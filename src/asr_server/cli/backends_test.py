"""Notes about a server's answers, and a worker that cannot be started."""

from __future__ import annotations

import tempfile

import pytest

from asr_server.cli.backends import LocalBackend, local_settings, notes
from asr_server.cli.failure import NoServer
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


async def test_without_a_directory_for_temporary_files_the_message_says_so(monkeypatch, tmp_path):
    """The message is one line, which the command prints in place of a traceback."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(NoServer, match=r"cannot be started: .*No such file or directory"):
        async with LocalBackend(local_settings("demo")):
            pass
