"""Finds how many replicas a load needs so that answers come in time, by simulating one replica's part of the load."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from asr_server_sizing.profile import AUDIO_TOKENS_PER_S, PROMPT_TOKENS, Profile
from asr_server_sizing.replica import HostCosts
from asr_server_sizing.simulation import Load, Outcome, Servers, simulate, steady

# Simulated seconds, and the seconds before them that are not counted; longer if recordings are rare.
_DURATION_S, _LONGEST_S = 30.0, 60.0
_WARM_UP_S = 8.0
# Simulated first; a load that then misses the targets this many times is not simulated longer.
_TRIAL_S, _FAR = 3.0, 1.5
_RECORDINGS_SEEN = 5
# The replicas are as few as that share allows; a nearer figure would be finer than the measured costs.
_PRECISION = 0.02
# The most load of the thread that serves all connections, or of the one of voice detection. Beyond, answers wait.
MOST_HOST_LOAD = 0.7
# How much more of the recordings may wait at the end, as a part of those that came.
_GROWTH = 0.1
_SPAN_S = 30.0
MOST_REPLICAS = 100_000


# The costs of live sessions and recordings besides the engine. Sessions: `tools/bench/many_sessions.py`, 2026-11-26,
# with 200 sessions in silence and of real speech; fewer cost more each, as they share less of voice detection's calls.
# Recordings: `tools/bench/live_cost.py`, 2026-11-23, with WAV files of 30 s, on a busy machine.
HOST = HostCosts(
    silent_s=0.0036,
    voiced_s=0.0048,
    recording_s=0.0044,
    silent_loop_s=0.0021,
    voiced_loop_s=0.0036,
    recording_loop_s=0.0014,
    detection_s=0.0014,
)
HOST_SOURCE = (
    "The shares of the event loop and of voice detection were measured on two busy AMD EPYC cores, without an engine; "
    "see docs/run/cluster.md."
)


class Bound(StrEnum):
    """The resource that is used up first when one replica gets more load."""

    ENGINE = "engine"
    HOST = "event loop"
    DETECTION = "voice detection"
    SESSIONS = "MAX_LIVE_SESSIONS"


class TooMuch(Exception):
    """No number of replicas meets the targets, or none that can be planned; the message says why."""


@dataclass(frozen=True, slots=True)
class Targets:
    """The 95th percentiles that are allowed."""

    partial_p95_s: float = 1.0  # from the arrival of the audio of a partial
    final_p95_s: float = 1.0  # from the end of the utterance


@dataclass(frozen=True, slots=True)
class Plan:
    """The replicas that meet the targets."""

    replicas: int
    share: Load  # of one replica
    outcome: Outcome  # simulated for that load
    host_load: float  # of its event loop, in cores
    detection_load: float  # of its voice detection, in cores
    bound: Bound | None  # the reason why there are not fewer, None if there is one


def plan(servers: Servers, load: Load, targets: Targets, on_try: Callable[[int], None] = lambda replicas: None) -> Plan:
    """Return the fewest replicas, to 2 %. `servers.replicas` is ignored. `on_try`: called before each simulation.

    Raises `TooMuch`.
    """
    tries: dict[int, Plan | Bound] = {}

    def attempt(replicas: int) -> Plan | Bound:
        on_try(replicas)
        tries[replicas] = found = _attempt(servers, load, targets, replicas)
        return found

    low, bound = _least_replicas(servers, load)
    high, found = low, attempt(low)
    while not isinstance(found, Plan):
        if _is_alone(_share(load, high)):
            raise TooMuch("One live session alone, or one recording at a time, does not meet the targets.")
        low, bound, high = high, found, 2 * high
        if high > MOST_REPLICAS:
            raise TooMuch(f"The load needs more than {MOST_REPLICAS:,} replicas.")
        found = attempt(high)
    while high - low > max(1, _PRECISION * high):
        middle = (low + high) // 2
        tried = attempt(middle)
        if isinstance(tried, Plan):
            high, found = middle, tried
        else:
            low, bound = middle, tried
    return replace(found, bound=bound if high > 1 else None)


def rank(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that `share` of the values do not exceed, or None if there are none."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else None


def recordings_limit(profile: Profile) -> float:
    """Return the seconds of recordings in a second, with full batches of whole spans and nothing else."""
    tokens = round(_SPAN_S * AUDIO_TOKENS_PER_S) + PROMPT_TOKENS
    steps_s = (profile.answer_passes(_SPAN_S) - 1) * profile.steps.decode(profile.slots) / profile.slots
    return _SPAN_S / (profile.steps.prefill_token_s * tokens + steps_s)


def _share(load: Load, replicas: int) -> Load:
    return replace(load, live=math.ceil(load.live / replicas), recordings_s_per_s=load.recordings_s_per_s / replicas)


def _is_alone(share: Load) -> bool:
    return share.live <= 1 and share.recordings_s_per_s < 1


def host_load(servers: Servers, share: Load) -> float:
    """Return the mean load of the event loop of a replica, in cores."""
    host = servers.host
    live = share.live * (share.voiced * host.voiced_loop_s + (1 - share.voiced) * host.silent_loop_s)
    return live + share.recordings_s_per_s * host.recording_loop_s


def detection_load(servers: Servers, share: Load) -> float:
    """Return the mean load of the thread of voice detection, in cores. Recordings have theirs in other threads."""
    return share.live * servers.host.detection_s


def _least_replicas(servers: Servers, load: Load) -> tuple[int, Bound]:
    """Return the replicas that are needed whatever a simulation says, and the reason."""
    least = {
        Bound.SESSIONS: load.live / servers.limits.live_sessions,
        Bound.HOST: host_load(servers, load) / MOST_HOST_LOAD,
        Bound.DETECTION: detection_load(servers, load) / MOST_HOST_LOAD,
        Bound.ENGINE: load.recordings_s_per_s / recordings_limit(servers.profile),
    }
    bound = max(least, key=lambda name: least[name])
    if least[bound] > MOST_REPLICAS:
        raise TooMuch(f"The load needs more than {MOST_REPLICAS:,} replicas.")
    return max(1, math.ceil(least[bound])), bound


def _attempt(servers: Servers, load: Load, targets: Targets, replicas: int) -> Plan | Bound:
    share = _share(load, replicas)
    # A load that is far too much shows soon, and would take the longest to simulate.
    trial = _simulated(servers, share, _TRIAL_S)
    if _is_missed(trial, share, Targets(_FAR * targets.partial_p95_s, _FAR * targets.final_p95_s)):
        return Bound.ENGINE
    duration_s = _DURATION_S
    if share.recordings_s_per_s:
        every_s = share.recording_s / share.recordings_s_per_s
        duration_s = min(_LONGEST_S, max(duration_s, _RECORDINGS_SEEN * every_s))
    outcome = _simulated(servers, share, duration_s)
    if _is_missed(outcome, share, targets):
        return Bound.ENGINE
    return Plan(replicas, share, outcome, host_load(servers, share), detection_load(servers, share), Bound.ENGINE)


def _simulated(servers: Servers, share: Load, duration_s: float) -> Outcome:
    return simulate(replace(servers, replicas=1), steady(share, duration_s, _WARM_UP_S))


def _is_missed(outcome: Outcome, share: Load, targets: Targets) -> bool:
    partial_s, final_s = rank(outcome.lags.partials_s, 0.95), rank(outcome.lags.finals_s, 0.95)
    is_late = (partial_s or 0.0) > targets.partial_p95_s or (final_s or 0.0) > targets.final_p95_s
    piles_up = outcome.waiting_s > share.recording_s + _GROWTH * outcome.came_s
    return bool(outcome.refused) or is_late or piles_up
