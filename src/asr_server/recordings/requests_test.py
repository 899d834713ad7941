"""What requests derive from what the caller states."""

import pytest

from asr_server.recordings.requests import (
    ResponseFormat,
    SubtitleRequest,
    TranscriptionRequest,
    WordTimes,
)


def test_prompt_and_hotwords_become_one_context():
    """Either may be missing."""
    request = TranscriptionRequest(prompt=" about lights ", hotwords=("kitchen", "bedroom"))
    assert request.context == "about lights\nkitchen, bedroom"
    assert TranscriptionRequest().context == ""
    assert TranscriptionRequest(hotwords=("kitchen",)).context == "kitchen"


@pytest.mark.parametrize(("mode", "times"), [("accurate", WordTimes.ALIGNED), ("fast", WordTimes.ESTIMATED)])
def test_words_are_timed_only_for_answers_that_have_times(mode, times):
    """Alignment takes as long as a short answer: nobody pays for it who gets none of its times."""
    plain = TranscriptionRequest(mode=mode)
    assert plain.needed_word_times is WordTimes.NONE
    assert TranscriptionRequest(mode=mode, return_timestamps=True).needed_word_times is times
    for subtitles in (ResponseFormat.SRT, ResponseFormat.VTT):
        assert TranscriptionRequest(mode=mode, response_format=subtitles).needed_word_times is times
    assert SubtitleRequest(mode=mode).needed_word_times is times
