"""Live audio in pieces and whole samples."""

from hypothesis import given
from hypothesis import strategies as st

from asr_server.live.machine.cutting import WholeSamples, pieces


@given(st.binary(max_size=50), st.integers(1, 9))
def test_pieces_are_the_bytes_in_order(pcm, size):
    """All have the size but the last, which is not empty."""
    cut = list(pieces(pcm, size))
    assert b"".join(cut) == pcm
    assert all(len(piece) == size for piece in cut[:-1])
    assert all(cut)


@given(st.lists(st.binary(max_size=9), max_size=9))
def test_samples_come_whole_however_they_are_cut(frames):
    """At once when they are complete; a beginning without its end waits, until it is forgotten."""
    whole, got, sent = WholeSamples(), b"", b""
    for frame in frames:
        got, sent = got + whole.push(frame), sent + frame
        assert got == sent[: len(sent) // 2 * 2]
    whole.clear()
    assert whole.push(bytes(2)) == bytes(2)
