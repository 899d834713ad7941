"""Event streams cut anywhere."""

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from asr_server.client.connection import EventStream

_TEXTS = st.lists(st.text(max_size=20), max_size=5)


def _wire(texts):
    """Frame texts as the server does: unescaped, with a keep-alive after each."""
    frames = [f"data: {json.dumps({'text': text}, ensure_ascii=False)}\n\n: ping\n\n" for text in texts]
    return "".join(frames).encode("utf-8", "surrogatepass")


@given(texts=_TEXTS, cuts=st.lists(st.integers(0, 400), max_size=8), end=st.sampled_from(['{"done": true}', "[DONE]"]))
def test_how_the_bytes_are_cut_changes_nothing(texts, cuts, end):
    """Any text, line separators and keep-alives included, cut anywhere, also inside a character."""
    texts = [text.encode("utf-8", "ignore").decode() for text in texts]
    wire = _wire(texts) + f"data: {end}\n\n".encode()
    edges = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    stream = EventStream()
    events = [e for a, b in itertools.pairwise(edges) for e in stream.feed(wire[a:b])]
    assert events == [{"text": text} for text in texts]
    assert stream.ended
