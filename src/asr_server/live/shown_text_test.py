"""What a client sees of a session that moved: words that are never taken back, and every partial that is news."""

from asr_server.live.shown_text import ShownText


def test_other_words_of_the_same_audio_are_shown():
    """A second look at the audio that the client has seen is news; one at less audio is not."""
    text = ShownText()
    text.begin(1, "one", 2.0)
    first = text.on_partial(1, "one too", "one", 2.0)
    second = text.on_partial(1, "one two", "one two", 2.0)
    assert (first.text, second.text, second.committed) == ("one too", "one two", "one two")
    assert text.on_partial(1, "one", "one", 1.9) is None
