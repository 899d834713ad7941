"""Voices among pieces of speech."""

from unittest.mock import Mock

import numpy as np
import pytest

from asr_server.core.transcript import MAX_SPEAKERS
from asr_server.features.speakers.diarization import clustering
from asr_server.features.speakers.diarization.clustering import Plda
from asr_server.features.speakers.diarization.turns import SpeakerCount


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
    return clustering.voices(voices, np.full(len(voices), 2.0), count or SpeakerCount(), None)


@pytest.mark.parametrize(
    ("similarity", "people", "pieces"), [(0.35, 2, 1), (0.35, 2, 2), (0.35, 2, 10), (0.35, 2, 60), (0.3, 1, 60)]
)
def test_how_long_people_speak_does_not_merge_or_divide_them(similarity, people, pieces):
    """The means of two similar voices grow more similar, the more pieces there are of each: here from 0.35 to 0.57."""
    assert len(_found(_voices(0.6, similarity, people, pieces))) == people


@pytest.mark.parametrize(
    ("at_least", "at_most", "pieces", "speakers"),
    [(1, 40, 10, 3), (1, 2, 10, 2), (1, 1, 10, 1), (5, 5, 10, 5), (4, 5, 1, 3)],
)
def test_the_caller_knows_how_many_there_are(at_least, at_most, pieces, speakers):
    """Three voices in pieces become as many speakers as the caller allows, and no more than there are pieces."""
    assert len(_found(_voices(0.6, 0.2, 3, pieces), SpeakerCount(at_least, at_most))) == speakers


def test_groups_are_compared_with_what_others_have_become():
    """Rows 2 and 3 are nearest to row 0, until row 1, which is far from both and not much shorter, has joined it."""
    cosines = np.array([[1, 0.9, 0.8, 0.8], [0.9, 1, 0.6, 0.6], [0.8, 0.6, 1, 0.79], [0.8, 0.6, 0.79, 1]])
    for weights, groups in (([1, 1, 1, 1], [0, 0, 1, 1]), ([10, 1, 1, 1], [0, 0, 0, 0])):
        found = clustering.agglomerate(np.linalg.cholesky(cosines), np.array(weights, float), stop=0.75)
        assert found.tolist() == groups


def _plda(dimensions, noise):
    """Return parameters for embeddings whose first dimensions distinguish people. The others are noise."""
    whole, zeros = dimensions + noise, np.zeros(dimensions)
    scale = {"transform": 2 * np.eye(dimensions), "variance": np.full(dimensions, 4.0)}
    return Plda(np.zeros(whole), np.eye(whole, dimensions), mean_after=zeros, mean=zeros, **scale)


def test_vbx_merges_what_cosines_keep_apart():
    """Though no two pieces of one person are as similar as clusters have to be to be merged at once."""
    rng, people = np.random.default_rng(0), np.repeat([0, 1, 2], 20)
    own = np.eye(24)[people] + rng.normal(size=(60, 24)) / 15
    noise = clustering.unit(rng.normal(size=(60, 400)))
    embeddings = np.hstack([own, 1.6 * noise])
    directions = clustering.unit(embeddings)
    assert (directions @ directions.T - np.eye(60)).max() < clustering.MERGE_COSINE
    centres = clustering.voices(embeddings, np.full(60, 2.0), SpeakerCount(), _plda(24, 400))
    nearest = (directions @ centres.T).argmax(axis=1)
    assert len(centres) == 3
    assert len(set(zip(people, nearest, strict=True))) == 3


def test_the_work_has_a_bound(monkeypatch):
    """Some of 5,000 sounds that are all different are compared in pairs, and VBx gets some of the groups."""
    vbx, agglomerate = Mock(side_effect=lambda *given: given[-1][:, :50]), Mock(wraps=clustering.agglomerate)
    monkeypatch.setattr(clustering, "agglomerate", agglomerate)
    monkeypatch.setattr(clustering, "vbx", vbx)
    voices = np.random.default_rng(0).normal(size=(5_000, 64))
    assert len(clustering.voices(voices, np.full(5_000, 2.0), SpeakerCount(), _plda(8, 56))) <= MAX_SPEAKERS
    assert max(len(call.args[0]) for call in agglomerate.call_args_list) <= clustering.MOST_COMPARED
    assert vbx.call_args.args[-1].shape == (5_000, clustering.MOST_CLUSTERS)
