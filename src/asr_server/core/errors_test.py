"""The error tree."""

from asr_server.core import errors


def test_every_leaf_has_a_code_of_its_own():
    """Two different failures never share a code, and none falls back to the root's."""
    codes = [leaf.code for leaf in errors.leaves()]
    assert len(codes) == len(set(codes))
    assert errors.AsrError.code not in codes


def test_retry_after_stays_where_clients_honour_it():
    """OpenAI's clients ignore hints outside 1..60 s."""
    assert errors.Overloaded("x", retry_after_s=0).retry_after_s == 1
    assert errors.Overloaded("x", retry_after_s=900).retry_after_s == 60
