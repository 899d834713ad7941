"""What does one live partial cost, at every length of a session, and against feeding all audio again?

A session is utterances of at most 30 s; a partial comes every 450 ms. Its engine gets what a session gives it: the
words of the last hypothesis but for the newest seconds are committed and forced, the others are its draft, of which
the last two tokens turn out otherwise. The cost rises within each encoder window of 8 s and falls back with the next,
and an utterance of 30 s has the longest prompt.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from asr_server.engine.protocol import Hypothesis, Utterance
from asr_server.engine.qwen_asr.engine import QwenEngine
from tools.bench import engines
from tools.bench.engines import TOKENS_PER_S, percentiles
from tools.checkpoints.recogniser import random_checkpoint

STEP_S = 0.45
UTTERANCE_S = 30.0
# Tokens of a hypothesis that are not committed yet (4 s of speech), and of these, those that change.
OPEN_TOKENS, CHANGED_TOKENS = round(4 * TOKENS_PER_S), 2
# Seconds into a session, and into its open utterance: where a partial costs the most, before an encoder window closes
# and before the utterance is cut.
PLACES = {10: (7.9,), 30: (23.9, 29.9), 60: (23.9, 29.9), 120: (23.9, 29.9), 300: (23.9, 29.9), 600: (23.9, 29.9)}


@dataclass
class Speaker:
    """The utterances of a session that goes on; `number` is that of the open one."""

    name: str
    number: int = 0
    last: Hypothesis | None = field(default=None, repr=False)

    def partial(self, seconds: float) -> Utterance:
        """Return the request of the session when its utterance is this long."""
        ids = self.last.ids if self.last else ()
        committed = ids[: max(0, len(ids) - OPEN_TOKENS)]
        draft = (*committed, *ids[len(committed) : max(0, len(ids) - CHANGED_TOKENS)])
        audio, session = engines.speech(seconds), f"{self.name}:{self.number}"
        return Utterance(audio, language="English", session=session, prefix=committed, draft=draft)

    def final(self, seconds: float) -> Utterance:
        """Return the request for the whole utterance; the next partial is of the next one."""
        asked = self.partial(seconds)
        self.number, self.last = self.number + 1, None
        return Utterance(
            asked.audio, language="English", session=asked.session, prefix=asked.prefix, draft=asked.draft, last=True
        )


def measure(model_id: str = "", device: str = "auto") -> dict[str, object]:
    """Milliseconds of one partial; by default of random weights of the 0.6B's shape."""
    engine = engines.load(model_id or str(random_checkpoint("0.6b")), max_batch=2, device=device)
    with engines.forced_answers():
        _partials(engine, [Speaker("warm-up")], 5.0, 2)
        by_place = _session(engine)
        utterance = _partials(engine, [Speaker("whole")], UTTERANCE_S, int(UTTERANCE_S / STEP_S))
        pairs = _partials(engine, [Speaker("left"), Speaker("right")], UTTERANCE_S, int(UTTERANCE_S / STEP_S))
        again_ms = _again_ms(engine, UTTERANCE_S)
    return {
        "question": f"Cost of one partial in ms; utterances end at {UTTERANCE_S:g} s",
        "settings": {"dtype": engine.info.dtype, "device": engine.info.device},
        "dearest_by_seconds_into_the_session": by_place,
        "largest_over_smallest_from_30_s": _spread([by_place[place_s] for place_s in PLACES if place_s >= 30]),
        "one_speaker_for_30_s": {**percentiles([utterance]), "most": round(max(utterance), 1)},
        "two_speakers_for_30_s_both_partials": {**percentiles([pairs]), "most": round(max(pairs), 1)},
        "two_speakers_share_of_real_time": round(sum(pairs) / (1000 * STEP_S * len(pairs)), 2),
        "feeding_30_s_again_without_a_draft": round(again_ms, 1),
        "times_cheaper": round(again_ms / max(utterance), 2),
        "target": "at most 450 ms at every length up to 10 minutes; two speakers in real time",
    }


def _session(engine: QwenEngine) -> dict[int, float]:
    """The dearest partial around each place of one session, whose utterances before are only closed there."""
    speaker, found = Speaker("session"), {}
    for place_s, lengths_s in PLACES.items():
        speaker.number, speaker.last = int(place_s // UTTERANCE_S), None
        costs = [statistics.median(_partials(engine, [speaker], upto_s, count=3)) for upto_s in lengths_s]
        found[place_s] = round(max(costs), 1)
        engines.run(engine, [speaker.final(lengths_s[-1])])
    return found


def _partials(engine: QwenEngine, speakers: Sequence[Speaker], upto_s: float, count: int) -> list[float]:
    """Costs in ms of the last `count` partials of utterances that are `upto_s` long, of all speakers together.

    What they build on, the windows and the hypothesis of the partial before, is made first.
    """
    costs, before_s = [], upto_s - count * STEP_S
    for seconds in np.arange(max(STEP_S, before_s), upto_s + STEP_S / 2, STEP_S):
        began = time.perf_counter()
        found, _ = engines.run(engine, [speaker.partial(seconds) for speaker in speakers])
        costs.append(1000 * (time.perf_counter() - began))
        for speaker, hypothesis in zip(speakers, found, strict=True):
            speaker.last = hypothesis
    return costs[-count:]


def _again_ms(engine: QwenEngine, seconds: float) -> float:
    began = time.perf_counter()
    engines.run(engine, [Utterance(engines.speech(seconds), language="English")])
    return 1000 * (time.perf_counter() - began)


def _spread(costs: Sequence[float]) -> float:
    return round(max(costs) / min(costs), 2)
