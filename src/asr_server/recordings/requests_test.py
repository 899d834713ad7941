"""What requests derive from what the caller states."""

import pytest

from asr_server.recordings.requests import (
    OutputOptions,
    ResponseFormat,
    SubtitleRequest,
    TranscriptionRequest,
    WordTimes,
    context,
)


def test_prompt_and_hotwords_become_one_context():
    """Either may be missing."""
    assert context(" about lights ", ["kitchen", "bedroom"]) == "about lights\nkitchen, bedroom"
    assert context("", []) == ""
    assert TranscriptionRequest(hotwords=("kitchen",)).context == "kitchen"


@pytest.mark.parametrize("mode", [WordTimes.ALIGNED, WordTimes.ESTIMATED])
def test_words_are_timed_only_for_answers_that_have_times(mode):
    """Alignment takes as long as a short answer: nobody pays for it who gets none of its times."""
    plain = TranscriptionRequest(word_times=mode)
    assert plain.needed_word_times is WordTimes.NONE
    assert TranscriptionRequest(word_times=mode, output=OutputOptions(words=True)).needed_word_times is mode
    for subtitles in (ResponseFormat.SRT, ResponseFormat.VTT):
        assert TranscriptionRequest(word_times=mode, output=OutputOptions(subtitles)).needed_word_times is mode
    assert SubtitleRequest(word_times=mode).needed_word_times is mode
