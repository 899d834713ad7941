"""Terms are found in texts of any script, also at the end of a text that is not complete."""

import pytest

from asr_server.features.hotwords.terms import Terms
from asr_server.text import words


@pytest.mark.parametrize(
    ("context", "text", "found"),
    [
        ("Kubernetes, Istio", "So kubernetes; and ISTIO.", {1, 3}),
        ("We met in New York. The topic: node.js", "we met in new york, the topic node.js", set(range(8))),
        ("New York", "New Jersey is not york", set()),  # part of a term is none
        ("New York Times", "I read the New York Ti", {3, 4, 5}),  # but may become one
        ("Kubernetes", "Kub", {0}),
        ("电灯、音乐", "打开电灯", {2, 3}),
        ("!, ?", "What?", set()),
        ("", "what", set()),
    ],
)
def test_the_words_of_terms_are_found(context, text, found):
    assert Terms(context).found(words.split(text)) == found
