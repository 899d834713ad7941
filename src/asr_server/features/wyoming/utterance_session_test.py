"""Lines of a live session as one growing text, and a session over two servers. Others are tested in E2Etest/wyoming."""

from hypothesis import given
from hypothesis import strategies as st

from asr_server.client.conftest import servers, text
from asr_server.client.live import Line, LiveOptions
from asr_server.features.wyoming.pcm import PcmFormat
from asr_server.features.wyoming.utterance_session import GrowingText, UtteranceSession
from asr_server.text.scripts import join


def _line(utterance, words, *, known, ending=""):
    committed, tentative = " ".join(words[:known]), " ".join(words[known:])
    gap = " " if committed and tentative else ""
    return Line(utterance, committed, gap + tentative, ending, "English", 0.0, 1.0, 0)


@given(st.lists(st.lists(st.sampled_from(["turn", "on", "灯", "打开", "lights"]), max_size=5), max_size=4))
def test_the_pieces_joined_are_the_finals_joined(utterances):
    growing, pieces = GrowingText(), ""
    for number, words in enumerate(utterances, 1):
        for known in range(len(words)):
            pieces += growing.feed(_line(number, words, known=known))
        pieces += growing.feed(_line(number, words, known=len(words), ending="pause"))
    assert pieces == growing.text == join(" ".join(words) for words in utterances)


def test_an_utterance_goes_on_at_another_server():
    """The first server dies after the last audio, before it has answered."""

    def first(side):
        side.hello()
        side.hear(4, 1)
        side.say(text(1, "turn", end=0.5))
        side.break_off()

    def second(side):
        side.hello()
        side.hear(4, 1)
        side.say(text(1, "burn on", ending="flush"))
        side.end()

    pieces = []
    with servers(first, lambda side: side.refuse("session_not_found"), second) as url:
        session = UtteranceSession(url, LiveOptions(), pieces.append)
        session.push(b"1234", PcmFormat(16_000, 2, 1))
        assert session.finish().text == "turn on"
    assert pieces == ["turn", " on"]
