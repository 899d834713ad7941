"""The speech of each speaker, from the likeness of pieces to speakers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from asr_server.core.audio import samples_to_ms
from asr_server.features.speakers.diarization import clustering
from asr_server.features.speakers.diarization.clustering import Vectors
from asr_server.features.speakers.diarization.turns import Turn
from asr_server.features.speakers.diarization.windows import Overlap, Piece

# A voice from less sound than this, and than the median of all voices, is too unclear to distinguish speakers by.
_CLEAR_S = 1.0
# Two pieces of one speaker that are nearer belong to one turn.
_GAP_MS = 50
# A pause of one speaker that is shorter belongs to the turn, unless another speaks in it: people pause that long inside
# a sentence.
_LONGEST_PAUSE_MS = 500


@dataclass(frozen=True, slots=True)
class VoiceSpan:
    """Speech of one speaker."""

    begin: int  # first sample
    end: int  # sample after the last
    speaker: int  # index of the speaker


def clear(pieces: Sequence[Piece]) -> list[Piece]:
    """Return the pieces that are good enough to distinguish voices; at least one if any piece has a voice."""
    heard = [piece for piece in pieces if piece.voice is not None]
    least_s = min(_CLEAR_S, float(np.median([piece.voice_s for piece in heard]))) if heard else 0.0
    return [piece for piece in heard if piece.voice_s >= least_s]


def attributed(pieces: Sequence[Piece], overlaps: Sequence[Overlap], centres: Vectors) -> list[VoiceSpan]:
    """Return spans with the speakers of the pieces and overlaps. `centres`: (speakers, D), at least one."""
    heard = [piece for piece in pieces if piece.voice is not None]
    voices = np.array([piece.voice for piece in heard], np.float64).reshape(len(heard), centres.shape[1])
    likeness = dict(zip(heard, clustering.unit(voices) @ centres.T, strict=True))
    spans = [_span(piece.begin, piece.end, likeness.get(piece, np.zeros(len(centres)))) for piece in pieces]
    tracks: dict[tuple[int, int], list[Piece]] = defaultdict(list)
    for piece in heard:
        tracks[piece.track].append(piece)
    for overlap in overlaps:
        for track in overlap.tracks:
            if own := tracks[track]:
                nearest = min(own, key=lambda piece: max(piece.begin - overlap.end, overlap.begin - piece.end))
                spans.append(_span(overlap.begin, overlap.end, likeness[nearest]))
    # Speech too short to be recognised belongs to the speaker nearest to it, or to speaker 0 if there is none.
    known = [span for span in spans if span.speaker >= 0] or [VoiceSpan(0, 0, 0)]
    named = iter(of_nearest([span for span in spans if span.speaker < 0], known))
    return [span if span.speaker >= 0 else next(named) for span in spans]


def turns(spans: Sequence[VoiceSpan]) -> tuple[Turn, ...]:
    """Join consecutive spans of one speaker into turns."""
    found: list[Turn] = []
    latest: dict[int, int] = {}  # the place of each speaker's latest turn
    for span in sorted(spans, key=lambda span: (span.begin, span.end)):
        start_ms, end_ms = samples_to_ms(span.begin), samples_to_ms(span.end)
        if not _continues(found, latest, span, start_ms):
            latest[span.speaker] = len(found)
            found.append(Turn(span.speaker, start_ms, end_ms))
        else:
            turn = found[latest[span.speaker]]
            found[latest[span.speaker]] = replace(turn, end_ms=max(turn.end_ms, end_ms))
    return tuple(found)


def _continues(found: Sequence[Turn], latest: Mapping[int, int], span: VoiceSpan, start_ms: int) -> bool:
    """Return True if the span continues its speaker's latest turn: after a short pause in which nobody else speaks."""
    if span.speaker not in latest:
        return False
    until_ms = found[latest[span.speaker]].end_ms
    others = (found[place] for speaker, place in latest.items() if speaker != span.speaker)
    quiet = start_ms - until_ms <= _LONGEST_PAUSE_MS and all(turn.end_ms <= until_ms for turn in others)
    return start_ms <= until_ms + _GAP_MS or quiet


def _span(begin: int, end: int, likeness: Vectors) -> VoiceSpan:
    """Return the span of the most similar speaker, or of -1 if `likeness` is zero for all: nothing is known then."""
    return VoiceSpan(begin, end, int(likeness.argmax()) if likeness.any() else -1)


def of_nearest(unknown: Sequence[VoiceSpan], known: Sequence[VoiceSpan]) -> list[VoiceSpan]:
    """Give each span to the speaker nearest to it in time."""
    begins, ends = np.array([(span.begin, span.end) for span in known]).T
    places = [int(np.maximum(begins - span.end, span.begin - ends).argmin()) for span in unknown]
    return [replace(span, speaker=known[place].speaker) for span, place in zip(unknown, places, strict=True)]
