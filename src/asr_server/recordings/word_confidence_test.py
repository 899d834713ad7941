"""The confidence of words."""

import math

import pytest

from asr_server.core.transcript import TimeSource, Word
from asr_server.engine.protocol import Finish, Hypothesis
from asr_server.recordings.word_confidence import rated


def _words(*texts):
    return [Word(text, n, n + 1, TimeSource.ESTIMATED) for n, text in enumerate(texts)]


def _hypothesis(text, *tokens, offsets=None):
    """`tokens`: bytes and probability of each."""
    pieces = [piece for piece, _ in tokens]
    written = [len(b"".join(pieces[: n + 1]).decode(errors="ignore")) for n in range(len(pieces))]
    return Hypothesis(
        text=text,
        language="English",
        ids=tuple(range(len(tokens))),
        logprobs=tuple(math.log(probability) for _, probability in tokens),
        finish=Finish.END,
        audio_tokens=1,
        prompt_tokens=1,
        passes=1,
        offsets=tuple(written) if offsets is None else offsets,
        pieces=tuple(pieces),
    )


@pytest.mark.parametrize(
    ("text", "tokens", "expected"),
    [
        ("turn it on.", [(b"turn", 0.5), (b" it", 0.25), (b" on", 0.9), (b".", 0.4)], [0.5, 0.25, 0.6]),
        ("turn on", [(b"", 0.01), (b"tu", 0.9), (b"rn", 0.4), (b" on", 1.0)], [0.6, 1.0]),
        ("你好 a", [("你好".encode(), 0.5), (b" a", 0.7)], [0.5, 0.5, 0.7]),
        ("é a", [(b"\xc3", 0.9), (b"\xa9", 0.4), (b" ", 0.1), (b"a", 0.8)], [0.6, 0.8]),
    ],
    ids=["words", "language-token", "token-of-two-words", "parts-of-a-character"],
)
def test_a_word_is_as_probable_as_its_tokens(text, tokens, expected):
    """The geometric mean over the tokens that write any of its characters, and over no others."""
    words = _words(*(text.split() if text.isascii() or "é" in text else ["你", "好", "a"]))
    assert [word.confidence for word in rated(words, _hypothesis(text, *tokens))] == expected


def test_words_that_do_not_map_have_no_confidence():
    """A text that was cleaned up has no offsets; a word that it does not hold has no place."""
    words = _words("turn", "on")
    assert list(rated(words, _hypothesis("turn on", (b"turn on", 0.5), offsets=()))) == words
    assert [word.confidence for word in rated(_words("off", "on"), _hypothesis("on", (b"on", 0.5)))] == [None, 0.5]
