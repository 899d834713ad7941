"""The number of live streams that an engine can still take, and of seconds of recordings in a second.

`EngineWork` counts what an engine thread has done. `StreamCapacity` makes the figures of it. Pure.

A stream costs the engine seconds that live work took, for each second of speech that it answered. Rows share the time
of a pass, so another stream costs only the part that grows with the rows: the slope of a line through the rows and the
seconds of passes. While recordings wait or run they keep a fifth of the engine's time (`RECORDINGS_SHARE`), however
much live work there is. Live work may take the rest, and no more than leaves partials in time: an answer takes as long
as alone, divided by the share of the engine that is left. This gives how many may speak at once. Where partials are
late nevertheless, the number is lower in that ratio: sessions then ask less often, and so seem to cost less.

A session that is silent costs nothing, but may begin to speak: from the share of their time that people speak follows
how many sessions fit, so that rarely more than may speak at once do.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass

from asr_server.schedule.job import AnyJob, Priority

# The share of the engine's time that recordings keep while there is live work.
RECORDINGS_SHARE = 0.2
# How far either side may fall behind before it is forgotten. It bounds how long one side can keep the other waiting:
# live work for 2.5 s, recordings for 10 s.
_FORGOTTEN_S = 2.0


class StepTime:
    """Divides the time of one step between live work and recordings.

    A step first moves all rows that have had an outcome before, then begins new ones, live work first. So the time
    until an outcome of the former is shared by all of them, and what is spent until a new row has its first outcome is
    that row's own. `jobs`: the rows of the batch. `clock` is monotonic seconds.
    """

    def __init__(self, jobs: Collection[AnyJob], clock: Callable[[], float]) -> None:
        self.live_s = self.recordings_s = 0.0
        self.has_recordings = any(not job.priority.is_live for job in jobs)
        begun = [job for job in jobs if job.begun]
        self.moved_rows, self.moved_s = len(begun), 0.0  # the rows that had begun before, and their time
        # Counted once: each of these rows has an outcome, and is charged for with all of them.
        self._moved_live_share = _live_share(begun) if begun else None
        self.begun_rows, self.begun_s = 0, 0.0  # the others
        self._new = {job for job in jobs if not job.begun}
        self._clock = clock
        self._last_s = clock()

    def on_outcome(self, job: AnyJob) -> None:
        """A row has an outcome now."""
        if job not in self._new:
            self._charge_moved()
            return
        self._charge_new([job])
        self._new.remove(job)
        self.begun_rows += 1

    def end(self) -> None:
        """The step is over. What it did since the last outcome was for rows that have not got so far."""
        if self._new:
            self._charge_new([job for job in self._new if job.priority.is_live] or self._new)
        else:
            self._charge_moved()

    def _charge_moved(self) -> None:
        self.moved_s += self._divided(self._moved_live_share)

    def _charge_new(self, jobs: Collection[AnyJob]) -> None:
        self.begun_s += self._divided(_live_share(jobs))

    def _divided(self, live_share: float | None) -> float:
        """Return the time since the last outcome, after it was divided; None if it was for nobody."""
        now_s = self._clock()
        took_s, self._last_s = now_s - self._last_s, now_s
        if live_share is not None:
            self.live_s += took_s * live_share
            self.recordings_s += took_s * (1 - live_share)
        return took_s


def _live_share(jobs: Collection[AnyJob]) -> float:
    return sum(job.priority.is_live for job in jobs) / len(jobs)


class RecordingsShare:
    """The time that work which can wait, such as recordings beside live work, is behind its share."""

    def __init__(self) -> None:
        self._behind_s = 0.0

    @property
    def behind(self) -> bool:
        return self._behind_s > 0

    def charge(self, urgent_s: float, own_s: float, *, is_wanted: bool) -> None:
        """Count a step: its seconds for urgent work, and for this. Nothing is owed unless such work waits or runs."""
        behind_s = self._behind_s + RECORDINGS_SHARE * (urgent_s + own_s) - own_s
        self._behind_s = max(-_FORGOTTEN_S, min(_FORGOTTEN_S, behind_s)) if is_wanted else 0.0


# Seconds of audio in a second, before anything was measured: what two cores do with the 0.6B.
FIRST_GUESS_SPEED = 4.0
# The same for a GPU; an H100 does ten times that.
FIRST_GUESS_SPEED_GPU = 100.0
# About how often the engine hears a second of live speech in all, as parts of partials and of the final. Used only
# before live work was measured.
_TIMES_HEARD = 4.0
# A cost is known after this many seconds of live speech, and this long after the first: a worker that takes sessions
# of one that crashed has them all by then, and refuses none. It is that of the last 30 seconds or so in which somebody
# spoke.
_LEAST_SPEECH_S, _LEAST_SPAN_S = 10.0, 5.0
_MEMORY_S = 30.0
# The speed of recordings is known after this many seconds of the engine's time.
_LEAST_ENGINE_S = 1.0
# The share of their time that people speak is learnt over this many seconds; at first it is one, with this weight.
_SHARE_MEMORY_S = 300.0
_SHARE_WEIGHT_S = 60.0
# However little was said of late, a server takes at most the reciprocal times as many sessions as may speak at once.
_LEAST_SHARE = 0.25
# Standard deviations between the mean number of those who speak and the most that are expected: 98 % of the time.
_DEVIATIONS = 2.0
# This many may speak on any machine: where it is slow, answers then take up to three times as long as for one.
LEAST_STREAMS = 2
# Partials are to take this part of the time after which the next is due, on average: then nearly all come before it.
_IN_TIME = 2 / 3
# How much the variance of the number of rows in a pass, relative to the square of their mean, has to exceed this for a
# slope to count; and how many rows share a pass at most before it is seen.
_SLOPE_WEIGHT = 0.02
_MOST_SHARING = 16
# More than any machine has, so that engines without a measurable cost have a number too.
_MOST_STREAMS = 1_000_000
_LIVE_SHARE = 1 - RECORDINGS_SHARE
# Utterances whose length is kept: each open session has one, or two at the border between them.
_LENGTHS_KEPT = 8_192


class EngineWork:
    """The work that the engine has done so far. The engine thread changes it; any thread may read it.

    `live_s`: seconds that it took for live work. `recordings_s`: for everything else. `with_recordings_s`: how long
    recordings were in the batch, live work at the same time included, by the clock of requests. `speech_s`: seconds of
    live speech that were answered, each counted once, the first at `first_speech_s` (monotonic). `row_s`: how long rows
    of live work were in the batch, in all. `partials`: how many were answered, after `partials_s` in all, from when
    they were queued. `moved` and `begun`: sums over the steps with live work alone, of 1, the rows, their square, the
    seconds, and rows times seconds; for rows that had begun before, and for new ones.
    """

    def __init__(self) -> None:
        self.moved: tuple[float, ...] = (0.0,) * 5
        self.begun: tuple[float, ...] = (0.0,) * 5
        self.live_s = self.recordings_s = self.with_recordings_s = 0.0
        self.speech_s = self.row_s = self.partials_s = 0.0
        self.first_speech_s = math.inf
        self.partials = 0
        self._lengths: OrderedDict[str, float] = OrderedDict()  # seconds that were answered, by utterance

    def stepped(self, step: StepTime, request_s: float) -> None:
        """A step is over; it took `request_s` by the clock of requests."""
        self.live_s += step.live_s
        self.recordings_s += step.recordings_s
        if step.has_recordings:
            self.with_recordings_s += request_s
            return
        if step.moved_rows:
            self.moved = _with_pass(self.moved, step.moved_rows, step.moved_s)
        if step.begun_s:
            self.begun = _with_pass(self.begun, step.begun_rows, step.begun_s)

    def answered(self, job: AnyJob) -> None:
        """A row is done, and its times are set."""
        new_s = self._new_s(job) if job.session else 0.0
        if not job.priority.is_live:
            return
        self.speech_s += new_s
        self.first_speech_s = min(self.first_speech_s, job.ended_s)
        self.row_s += job.ended_s - job.started_s
        if job.priority is Priority.PARTIAL:
            self.partials += 1
            self.partials_s += job.ended_s - job.queued_s - job.load_s

    def _new_s(self, job: AnyJob) -> float:
        """Seconds of the utterance that no answer had before."""
        before_s = self._lengths.pop(job.session, 0.0)
        self._lengths[job.session] = max(before_s, job.cost_s)
        if len(self._lengths) > _LENGTHS_KEPT:
            self._lengths.popitem(last=False)
        return max(0.0, job.cost_s - before_s)


def _with_pass(sums: tuple[float, ...], rows: int, seconds: float) -> tuple[float, ...]:
    return tuple(map(sum, zip(sums, (1, rows, rows * rows, seconds, rows * seconds), strict=True)))


@dataclass(frozen=True, slots=True)
class StreamRules:
    """The meaning of a stream, and what is known of the engine beforehand."""

    partial_every_s: float = 0.45  # the new speech after which a partial is due
    max_sessions: int = _MOST_STREAMS  # live sessions at most
    refuses: bool = True  # no more are taken while none is free; otherwise the number is for others to read
    # seconds of audio of recordings in a second, before anything was measured
    first_guess_speed: float = FIRST_GUESS_SPEED
    # Steps take the engine's own time. Those of an engine that runs elsewhere are spent waiting: how full it is shows
    # in its rows alone.
    steps_are_work: bool = True


@dataclass(frozen=True, slots=True)
class FreeCapacity:
    """The work that an engine can still take."""

    free_streams: int  # how many more live sessions fit
    streams: int  # live sessions that fit in all
    streams_measured: bool  # these are of live work that was done here; otherwise they are a guess
    stream_cost: float  # engine seconds for a second of live speech
    speech_share: float  # how much of the time of sessions is speech
    audio_s_per_s: float  # seconds of recordings in a second, while the present live work goes on
    free_audio_s_per_s: float  # how many of these are not used now
    audio_measured: bool  # these are of recordings that were answered here; otherwise they are a guess


class StreamCapacity:
    """Computes from `work` what the engine can take. Used by one thread.

    `slots`: how many rows its batch has now, 0 if that is not known yet. `clock` is monotonic seconds.
    """

    def __init__(
        self,
        work: EngineWork,
        rules: StreamRules,
        *,
        slots: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rules = rules
        self._work, self._slots, self._clock = work, slots, clock
        self._updated_s = clock()
        self._sessions = 0
        self._totals = self._read(0.0)
        self._live = _Faded(_MEMORY_S, (0.0,) * (6 + 5 + 5))  # seconds with speech, and the sums of `_read`
        self._speaking = _Faded(_SHARE_MEMORY_S, (_SHARE_WEIGHT_S, _SHARE_WEIGHT_S))  # speech, sessions
        self._wall = _Faded(_MEMORY_S, (0.0,) * 3)  # passed, live, recordings
        self._audio = _Faded(_MEMORY_S, (rules.first_guess_speed, 1.0))  # audio, engine

    def update(self, sessions: int, audio_s: float = 0.0) -> None:
        """Note what was done since the last call. To be called when the number of sessions changes, and before `free`.

        `sessions`: live sessions from now on. `audio_s`: seconds of audio of recordings that were answered so far.
        """
        now_s, totals = self._clock(), self._read(audio_s)
        passed_s = now_s - self._updated_s
        new = [after - before for after, before in zip(totals, self._totals, strict=True)]
        new_audio_s, recordings_s, live_s, speech_s, *_ = new
        # While nobody speaks, what is known of the cost stays as it is.
        spoken_s = min(passed_s, speech_s)
        self._live.add(spoken_s, (spoken_s, *new[2:]))
        self._wall.add(passed_s, (passed_s, live_s, recordings_s))
        self._audio.add(recordings_s, (new_audio_s, recordings_s))
        if self._sessions:
            self._speaking.add(passed_s, (speech_s, self._sessions * passed_s))
        self._updated_s, self._totals, self._sessions = now_s, totals, sessions

    def free(self, room: int | None = None) -> FreeCapacity:
        """Return what is free, as of the last update. `room`: the most sessions that may be added; None is no limit."""
        since_s = self._updated_s - self._work.first_speech_s
        measured = self._work.speech_s >= _LEAST_SPEECH_S and since_s >= _LEAST_SPAN_S
        _, live_s, speech_s, *_ = self._live.sums
        share = min(1.0, max(_LEAST_SHARE, self._speaking.ratio))
        guess = max(self._least_streams, _LIVE_SHARE * self._audio.ratio / _TIMES_HEARD)
        speakers = self._speakers() if measured else guess
        streams = min(self._most(room), math.floor(_sessions(speakers, share if measured else 1.0)))
        audio_s_per_s, free_audio_s_per_s = self._audio_s_per_s()
        return FreeCapacity(
            free_streams=max(0, streams - self._sessions),
            streams=streams,
            streams_measured=measured,
            stream_cost=live_s / speech_s if speech_s else 0.0,
            speech_share=share,
            audio_s_per_s=audio_s_per_s,
            free_audio_s_per_s=free_audio_s_per_s,
            audio_measured=self._work.recordings_s >= _LEAST_ENGINE_S,
        )

    def _most(self, room: int | None) -> int:
        return self.rules.max_sessions if room is None else min(self.rules.max_sessions, self._sessions + room)

    def _read(self, audio_s: float) -> tuple[float, ...]:
        work = self._work
        live = work.live_s, work.speech_s, work.row_s, work.partials, work.partials_s
        return audio_s, work.recordings_s, *live, *work.moved, *work.begun

    def _speakers(self) -> float:
        """Return how many may speak at once, as measured."""
        span_s, live_s, speech_s, row_s, partials, partials_s, *passes = self._live.sums
        by_rows, slots = math.inf, self._slots()
        if row_s and slots:
            by_rows = slots * speech_s / row_s
        in_time_s = _IN_TIME * self.rules.partial_every_s
        partial_s = partials_s / partials if partials else 0.0
        by_time = math.inf
        if live_s and self.rules.steps_are_work:
            own_s = live_s * _own_share(passes)
            # The more work, the longer an answer waits: by what the engine does for others meanwhile.
            alone_s = partial_s * (1 - min(1.0, own_s / span_s))
            by_time = min(_LIVE_SHARE, 1 - alone_s / in_time_s) * speech_s / own_s
        return max(self._least_streams, min(by_time, by_rows, _MOST_STREAMS) / max(1.0, partial_s / in_time_s))

    @property
    def _least_streams(self) -> int:
        return LEAST_STREAMS

    def _audio_s_per_s(self) -> tuple[float, float]:
        """Return the seconds of recordings in a second that the engine does while live work goes on, and how many are
        not used."""
        passed_s, live_s, recordings_s = self._wall.sums
        live, used = (live_s / passed_s, recordings_s / passed_s) if passed_s else (0.0, 0.0)
        share = max(RECORDINGS_SHARE, 1 - live)
        return self._audio.ratio * share, self._audio.ratio * max(0.0, share - used)


class _Faded:
    """Sums in which what is older than about `memory_s` counts less and less."""

    def __init__(self, memory_s: float, sums: tuple[float, ...]) -> None:
        self._memory_s = memory_s
        self.sums = sums

    def add(self, passed_s: float, new: tuple[float, ...]) -> None:
        """`passed_s`: the time that makes what is old fade."""
        kept = math.exp(-passed_s / self._memory_s)
        self.sums = tuple(before * kept + more for before, more in zip(self.sums, new, strict=True))

    @property
    def ratio(self) -> float:
        return self.sums[0] / self.sums[-1]


def _sessions(speakers: float, share: float) -> float:
    """Return how many sessions fit where `speakers` may speak at once, and each speaks for that share of its time.

    Of n sessions n * share speak on average, with the standard deviation of a binomial distribution.
    """
    spread = _DEVIATIONS * math.sqrt(share * (1 - share))
    root = (math.sqrt(spread**2 + 4 * share * speakers) - spread) / (2 * share)
    return max(speakers, root**2)


def _own_share(passes: list[float]) -> float:
    """Return the share of the time of live work that grows with the number of rows; passes share the rest."""
    sums = passes[:5], passes[5:]
    seconds = sum(each[3] for each in sums)
    return sum(map(_own_s, sums)) / seconds if seconds else 1.0


def _own_s(sums: list[float]) -> float:
    """Return the part of the passes' time that is in proportion to their rows: the slope of a line through (rows,
    seconds).

    Where the number of rows hardly varies the slope is not known. Then all of the time counts as theirs.
    """
    count, rows, squares, seconds, products = sums
    if not rows:
        return seconds
    mean, each_s = rows / count, seconds / rows
    variance, covariance = squares / count - mean**2, products / count - mean * seconds / count
    weight = _SLOPE_WEIGHT * mean**2
    slope = (covariance + weight * each_s) / (variance + weight)
    return rows * min(each_s, max(each_s / _MOST_SHARING, slope))
