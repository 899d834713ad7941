"""Captions as an HLS media playlist of WebVTT segments (RFC 8216, section 3.5), for players next to a picture.

A segment is a part of six seconds of the session. It is listed once no text can begin in it any more, and does not
change from then on.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from asr_server.features.sharing.captions import Caption
from asr_server.subtitle.cues import Cue
from asr_server.subtitle.files import render_vtt

SEGMENT_S = 6
_SEGMENT_MS = 1000 * SEGMENT_S
# A player reads a playlist about once in the time of a segment, and the segments of the last one it has read.
_LISTED, _KEPT = 10, 20


class Segments:
    """The segments of one stream of captions. For one thread."""

    def __init__(self) -> None:
        self._next = 0  # the number of segments that are listed or were
        self._newest = 0  # the number of the newest final that was taken
        self._cues: deque[Cue] = deque()  # of the segments that are kept, and later ones
        self._is_complete = False

    def new(self, finals: Iterable[Caption], settled_s: float) -> list[Caption]:
        """Return the finals whose cues `advance` will need."""
        oldest_s = (settled_s // SEGMENT_S - _KEPT) * SEGMENT_S
        return [one for one in finals if one.number > self._newest and one.end_s >= oldest_s]

    def advance(self, finals: Iterable[Caption], settled_s: float, *, is_complete: bool) -> None:
        """Take new finals, and list the segments that end before `settled_s`, the time before which no other text of
        the session will begin; all of them if `is_complete`."""
        for final in self.new(finals, settled_s):
            self._newest = final.number
            for cue in final.cues:
                # A cue that comes too late for its segment is shown in the next one, for as long.
                late = max(0, self._next * _SEGMENT_MS - cue.start_ms)
                self._cues.append(replace(cue, start_ms=cue.start_ms + late, end_ms=cue.end_ms + late))
        if is_complete:
            settled_s = math.ceil(max((cue.end_ms for cue in self._cues), default=0) / _SEGMENT_MS) * SEGMENT_S
        self._is_complete = is_complete
        self._next = max(self._next, int(settled_s // SEGMENT_S))
        while self._cues and self._cues[0].end_ms <= (self._next - _KEPT) * _SEGMENT_MS:
            self._cues.popleft()

    def playlist(self, query: str) -> str:
        """Return the playlist. `query`: of the addresses of segments, which are relative to its own."""
        first = max(0, self._next - _LISTED)
        lines = ["#EXTM3U", "#EXT-X-VERSION:3", f"#EXT-X-TARGETDURATION:{SEGMENT_S}", f"#EXT-X-MEDIA-SEQUENCE:{first}"]
        for number in range(first, self._next):
            lines += [f"#EXTINF:{SEGMENT_S}.000,", f"segments/{number}.vtt?{query}"]
        return "\n".join([*lines, *["#EXT-X-ENDLIST"] * self._is_complete, ""])

    def segment(self, number: int, mpegts: int) -> str | None:
        """Return a segment with all cues that are shown in it; None if it is not kept. `mpegts`: the time of the
        player's stream at the session's beginning, in 1/90,000 s."""
        if not max(0, self._next - _KEPT) <= number < self._next:
            return None
        start_ms, end_ms = number * _SEGMENT_MS, (number + 1) * _SEGMENT_MS
        file = render_vtt(cue for cue in self._cues if cue.start_ms < end_ms and cue.end_ms > start_ms)
        return file.replace("WEBVTT\n", f"WEBVTT\nX-TIMESTAMP-MAP=MPEGTS:{mpegts},LOCAL:00:00:00.000\n", 1)
