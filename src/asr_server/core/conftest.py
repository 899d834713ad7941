"""Helpers for tests of metrics and errors."""

from contextlib import contextmanager

import pytest

from asr_server.core.errors import AsrError


def counts(registry, name):
    """Return the series of a metric that are not zero, by the values of their labels."""
    samples = (sample for family in registry.collect() for sample in family.samples)
    return {tuple(one.labels.values()): one.value for one in samples if one.name == name and one.value}


@contextmanager
def raises(code, match=None):
    """Expect an error with this code."""
    with pytest.raises(AsrError, match=match) as caught:
        yield caught
    assert caught.value.code == code
