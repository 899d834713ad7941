"""Lines of a live session as one growing text. Sessions are tested in E2Etest/wyoming."""

from hypothesis import given
from hypothesis import strategies as st

from asr_server.bridge.utterance_session import GrowingText
from asr_server.client.live import Line
from asr_server.text.joining import join


def _line(utterance, words, *, known, final=False, language="English"):
    committed, tentative = " ".join(words[:known]), " ".join(words[known:])
    gap = " " if committed and tentative else ""
    return Line(utterance, committed, gap + tentative, "pause" if final else "", language, 0.0, 1.0, 0)


_WORDS = st.lists(st.sampled_from(["turn", "on", "灯", "打开", "lights"]), max_size=5)


@given(utterances=st.lists(_WORDS, max_size=4))
def test_the_pieces_joined_are_the_finals_joined(utterances):
    """However many words are certain early."""
    growing, pieces = GrowingText(), ""
    for number, words in enumerate(utterances, 1):
        for known in range(len(words)):
            pieces += growing.feed(_line(number, words, known=known))
        pieces += growing.feed(_line(number, words, known=len(words), final=True))
    assert pieces == growing.text == join(" ".join(words) for words in utterances)


def test_tentative_words_are_not_returned():
    """They may still change."""
    growing = GrowingText()
    assert growing.feed(_line(1, ["turn", "on"], known=1)) == "turn"
    assert growing.feed(_line(1, ["turn", "off"], known=2, final=True)) == " off"


def test_the_language_is_a_code_and_that_of_the_first_words():
    """Silence has none."""
    growing = GrowingText()
    growing.feed(_line(1, [], known=0, final=True, language=""))
    assert growing.language == ""
    growing.feed(_line(2, ["灯"], known=1, final=True, language="Chinese"))
    growing.feed(_line(3, ["on"], known=1, final=True))
    assert growing.language == "zh"
