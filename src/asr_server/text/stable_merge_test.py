"""Going on from words already shown."""

from hypothesis import given
from hypothesis import strategies as st

from asr_server.text.stable_merge import continued

_WORDS = st.lists(st.sampled_from(["turn", "on", "the", "light", "灯", "开"]), max_size=8)


@given(_WORDS, _WORDS)
def test_no_shown_word_is_taken_back(shown, text):
    """Whatever comes, the result begins with what was shown."""
    assert continued(" ".join(shown), " ".join(text)).startswith(" ".join(shown))


@given(_WORDS, _WORDS)
def test_a_text_that_agrees_is_kept_as_it_is(shown, more):
    """An agreeing text is neither cut nor doubled."""
    text = " ".join([*shown, *more])
    assert continued(" ".join(shown), text) == text


def test_a_text_that_disagrees_goes_on_behind_the_shown_words():
    """A changed, missing or extra word is not said twice, in scripts with and without spaces."""
    cases = [
        ("turn on the", "turn of the light", "turn on the light"),
        ("turn on the", "Turn on, the light", "turn on the light"),
        ("turn on", "turn all the light", "turn on the light"),
        ("turn the", "turn on the light", "turn the light"),
        ("turn on on the", "turn on the light", "turn on on the light"),
        ("打开客厅", "打开大厅的灯", "打开客厅的灯"),
        ("打开", "turn it", "打开"),
        ("", "hello", "hello"),
    ]
    for shown, text, result in cases:
        assert continued(shown, text) == result, (shown, text)
