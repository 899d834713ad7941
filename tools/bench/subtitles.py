"""How long do ten thousand cues take: word times estimated, cues broken, laid out, rendered and checked?"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from asr_server.subtitle import cue_segmentation, files
from asr_server.subtitle.alignment import estimate
from asr_server.subtitle.cue_segmentation import Passage
from asr_server.subtitle.cues import CueConfig
from E2Etest.cue_rules import check

COUNT = 10_000
ROUNDS = 3
TEXTS = {
    "English": (
        "Yesterday I went to the market, because my sister had asked me to buy some apples. On the way home I met an"
        " old friend, who told me a very long story. We had not seen each other for years, and so we went for a coffee."
    ),
    "Japanese": (
        "昨日は市場で古い友達に会って、とても長い話を聞きました。それから一緒にコーヒーを飲みに行きました。"
        "明日もまた東京タワーの近くで会う約束をしましたが、天気があまり良くないかもしれません。"
    ),
}
SPEECH_MS = [(0, 5200), (5900, 9100), (9800, 14_000)]  # of one span; the next begins 15 s later


def measure() -> dict[str, object]:
    """Best of three, in seconds of processor time on one thread."""
    return {
        "question": f"{COUNT} cues in two scripts, best of {ROUNDS}",
        **{language: _measure(language) for language in TEXTS},
        "target": f"{COUNT} cues rendered in under 1 s",
    }


def _measure(language: str) -> dict[str, object]:
    rules = CueConfig()
    per_span = len(cue_segmentation.cues(_passages(language, 100), rules)) / 100
    spans = round(COUNT / per_span)
    estimate_s, passages = _best(lambda: _passages(language, spans))
    break_s, cues = _best(lambda: cue_segmentation.cues(passages, rules))
    return {
        "cues": len(cues),
        "words": sum(len(passage.words) for passage in passages),
        "estimate_s": estimate_s,
        "break_s": break_s,
        "srt_s": _best(lambda: files.render_srt(cues))[0],
        "vtt_s": _best(lambda: files.render_vtt(cues))[0],
        "check_s": _best(lambda: check(cues, rules))[0],
    }


def _passages(language: str, spans: int) -> list[Passage]:
    text = TEXTS[language]
    starts = range(0, spans * 15_000, 15_000)
    return [Passage(text, estimate(text, language, [(at + a, at + b) for a, b in SPEECH_MS])) for at in starts]


def _best(work: Callable[[], Any]) -> tuple[float, Any]:
    took, result = [], None
    for _ in range(ROUNDS):
        began = time.process_time()
        result = work()
        took.append(time.process_time() - began)
    return round(min(took), 3), result
