"""The voices among many short pieces of speech: their number, and the mean of each.

Agglomerative clustering tends to find too many clusters. VBx (Landini et al., "Bayesian HMM clustering of x-vector
sequences", 2022), here without transitions, then merges them: it explains all pieces with as few speakers as the PLDA
model allows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asr_server.features.speakers.diarization.turns import SpeakerCount, VoicePrint

Vectors = NDArray[np.float64]

# Two clusters are merged at once if the mean cosine of their pieces is at least this. It is 0.6 or more for one person,
# and 0.38 or less for two people. The cosine of the clusters' means would grow with their size, even for two people.
MERGE_COSINE = 0.42
# Without PLDA there is no second stage of merging, so the first one must merge everything.
_MERGE_COSINE_ALONE = 0.4
# Only this many pieces are compared with each other, in a square matrix. Others go to the most similar cluster.
MOST_COMPARED = 1500
# Real recordings of many people have fewer clusters, but each sound that is no voice makes one.
MOST_CLUSTERS = 200
# VBx: the weight of one piece's evidence, and the weight of the prior against many speakers. With twice the prior, a
# voice of five seconds next to half a minute of another is lost. In published recipes, pieces overlap more and
# therefore have less weight each.
_EVIDENCE, _PRIOR = 0.35, 1.0
_ITERATIONS, _CONVERGED = 40, 1e-4
_LEAST_SHARE = 1e-5  # of all speech: a speaker with less is dropped
# Rounds of k-means after a speaker was added.
_SETTLING = 10
# Evidence is counted in pieces of this length.
_PIECE_S = 2.0


@dataclass(frozen=True, slots=True)
class Plda:
    """Probabilistic linear discriminant analysis of voices, with two centrings and a projection before it.

    It turns embeddings into vectors in which the variance within a speaker is 1, and the variance between speakers is
    `variance`. D is the number of dimensions of an embedding, K that of the projection.
    """

    mean_before: Vectors  # (D,)
    discriminant: Vectors  # (D, K)
    mean_after: Vectors  # (K,)
    mean: Vectors  # (K,)
    transform: Vectors  # (K, K)
    variance: Vectors  # (K,)

    def __call__(self, embeddings: Vectors) -> Vectors:
        """(n, D) -> (n, K)."""
        dimensions, projected = self.discriminant.shape
        centred = np.sqrt(dimensions) * unit(embeddings - self.mean_before)
        vectors = np.sqrt(projected) * unit(centred @ self.discriminant - self.mean_after)
        transformed: Vectors = (vectors - self.mean) @ self.transform.T
        return transformed


def voices(embeddings: Vectors, weights: NDArray[np.float64], count: SpeakerCount, plda: Plda | None) -> Vectors:
    """Return the mean direction of each speaker's pieces, (speakers, D), each of length 1.

    `embeddings`: (n, D), of at least one piece of speech; `weights`: (n,), their seconds.
    """
    directions = unit(embeddings)
    chosen = np.sort(np.argsort(-weights, kind="stable")[:MOST_COMPARED])
    stop = MERGE_COSINE if plda else _MERGE_COSINE_ALONE
    groups = agglomerate(directions[chosen], weights[chosen], stop=stop)
    largest = np.sort(np.argsort(-np.bincount(groups, weights[chosen]), kind="stable")[:MOST_CLUSTERS])
    centres = _means(directions[chosen], weights[chosen], _members(groups)[:, largest])
    if plda is not None:
        members = _members((directions @ centres.T).argmax(axis=1), len(centres))
        shares = vbx(plda(embeddings), plda.variance, weights / _PIECE_S, members)
        centres = _means(directions, weights, shares)
    return _within(count, centres, directions, weights)


def unit(vectors: Vectors) -> Vectors:
    """Scale each row to length 1; rows of zeros stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Vectors = vectors / np.maximum(lengths, 1e-9)
    return scaled


def agglomerate(directions: Vectors, weights: Vectors, *, stop: float = -1.0, at_least: int = 1) -> NDArray[np.intp]:
    """Return the group of each row: the two most similar groups are joined until all are less similar than `stop`, or
    `at_least` are left. The similarity of groups is the weighted mean of the cosines of their rows."""
    weights = weights.copy()
    similarity = directions @ directions.T
    np.fill_diagonal(similarity, -np.inf)
    groups = np.arange(len(directions))
    nearest = similarity.argmax(axis=1)
    for _ in range(len(directions) - at_least):
        first = int(similarity[np.arange(len(nearest)), nearest].argmax())
        second = int(nearest[first])
        if similarity[first, second] < stop:
            break
        groups[groups == second] = first
        both = weights[first] * similarity[first] + weights[second] * similarity[second]
        weights[first] += weights[second]
        similarity[first, :] = similarity[:, first] = both / weights[first]
        similarity[second, :] = similarity[:, second] = similarity[first, first] = -np.inf
        # A mean does not exceed both of its parts, so all other groups keep their nearest one.
        changed = np.flatnonzero((nearest == first) | (nearest == second))
        nearest[changed] = similarity[changed].argmax(axis=1)
    return np.unique(groups, return_inverse=True)[1]


def vbx(vectors: Vectors, variance: Vectors, weights: Vectors, members: Vectors) -> Vectors:
    """Return the responsibility (n, speakers) of each speaker for each piece; speakers without speech are left out.

    Equations 16 to 24 of the paper, with each piece counted as often as its weight says.
    """
    shares = np.maximum(members, 1e-3)
    shares /= shares.sum(axis=1, keepdims=True)
    prior = np.full(members.shape[1], 1 / members.shape[1])
    scaled, own = vectors * np.sqrt(variance), -0.5 * (vectors**2).sum(axis=1, keepdims=True)
    last = -np.inf
    for _ in range(_ITERATIONS):
        weighted = shares * weights[:, None]
        precision = 1 + _EVIDENCE / _PRIOR * weighted.sum(axis=0)[:, None] * variance
        mean = _EVIDENCE / _PRIOR * (weighted.T @ scaled) / precision
        evidence = scaled @ mean.T - 0.5 * ((1 / precision + mean**2) @ variance) + own
        scores = _EVIDENCE * weights[:, None] * evidence + np.log(prior + 1e-10)
        highest = scores.max(axis=1, keepdims=True)
        total = highest + np.log(np.exp(scores - highest).sum(axis=1, keepdims=True))
        shares = np.exp(scores - total)
        prior = (shares * weights[:, None]).sum(axis=0) / weights.sum()
        bound = total.sum() + _PRIOR / 2 * (1 - np.log(precision) - 1 / precision - mean**2).sum()
        if abs(bound - last) < _CONVERGED:
            break
        last = bound
    speaking: Vectors = shares[:, prior > _LEAST_SHARE]
    return speaking


def _within(count: SpeakerCount, centres: Vectors, directions: Vectors, weights: Vectors) -> Vectors:
    """Merge the most similar speakers, or divide the widest, until there are as many as the caller says."""
    if len(centres) > count.at_most:
        nearest = (directions @ centres.T).argmax(axis=1)
        spoken = np.bincount(nearest, weights, len(centres))
        groups = agglomerate(centres, np.maximum(spoken, 1e-3), at_least=count.at_most)
        centres = _means(centres, np.maximum(spoken, 1e-3), _members(groups))
    while len(centres) < min(count.at_least, len(directions)):
        # A new speaker begins with the piece that fits the others least. Then all pieces are assigned again.
        strangest = (directions @ centres.T).max(axis=1).argmin()
        centres = np.vstack([centres, directions[strangest]])
        for _ in range(_SETTLING):
            members = _members((directions @ centres.T).argmax(axis=1), len(centres))
            spoken = members.sum(axis=0) > 0
            centres[spoken] = _means(directions, weights, members)[spoken]
    return centres


def _members(groups: NDArray[np.intp], count: int | None = None) -> Vectors:
    """(n,) group numbers -> (n, groups) of ones and zeros."""
    return np.eye(count or groups.max() + 1)[groups]


def _means(directions: Vectors, weights: Vectors, shares: Vectors) -> Vectors:
    return unit((shares * weights[:, None]).T @ directions)


def mean_voice(voices: Vectors, weights: Vectors) -> VoicePrint:
    """Return the direction of the weighted mean of the directions of voices, (n, D)."""
    mean: VoicePrint = _means(unit(voices), weights, np.ones((len(voices), 1)))[0].astype(np.float32)
    return mean
