"""Voices among pieces of speech."""

import numpy as np
import pytest

from asr_server.speakers import clustering
from asr_server.speakers.clustering import Pieces
from asr_server.speakers.turns import SpeakerCount


def _voices(cosine_within, cosine_between, speakers, pieces):
    """Directions with these mean cosines, (speakers * pieces, dimensions), in the order of the speakers."""
    rng = np.random.default_rng(0)
    basis = np.eye(1 + speakers + 400)
    shared, own = np.sqrt(cosine_between), np.sqrt(cosine_within - cosine_between)
    noise = rng.normal(size=(speakers * pieces, 400))
    noise *= np.sqrt(1 - cosine_within) / np.linalg.norm(noise, axis=1, keepdims=True)
    found = shared * basis[0] + own * basis[1 + np.repeat(np.arange(speakers), pieces)]
    found[:, 1 + speakers :] += noise
    return found


def _found(voices, count=None):
    pieces = Pieces(voices, np.full(len(voices), 2.0))
    return clustering.voices(pieces, count or SpeakerCount(), None)


@pytest.mark.parametrize("pieces", [1, 2, 10, 60])
def test_how_long_people_speak_does_not_merge_them(pieces):
    """The means of two similar voices grow more similar, the more pieces there are of each: here from 0.35 to 0.57."""
    centres = _found(_voices(0.6, 0.35, 2, pieces))
    assert len(centres) == 2


def test_one_voice_stays_one():
    """However long."""
    assert len(_found(_voices(0.6, 0.3, 1, 60))) == 1


@pytest.mark.parametrize(("at_least", "at_most", "speakers"), [(1, 40, 3), (1, 2, 2), (1, 1, 1), (5, 5, 5), (3, 3, 3)])
def test_the_caller_knows_how_many_there_are(at_least, at_most, speakers):
    """Of three voices, as many are found as there may be."""
    assert len(_found(_voices(0.6, 0.2, 3, 10), SpeakerCount(at_least, at_most))) == speakers
