"""`asr-server serve` whose answers are written beforehand: random weights make no sense, and cost what others do.

`python -m tools.gpu.scripted_server`, with the settings of a server in the environment. A text of 3.5 tokens for each
second of audio comes as the answer. The last two tokens of a partial are others than those of the next, so that drafts
come true but for their ends, as they do in speech. ENGINE_TIMES is the file for the times of the engine thread.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, repeat
from pathlib import Path
from unittest import mock

from asr_server.cli.main import main
from asr_server.engine import remote
from asr_server.engine.protocol import Utterance
from asr_server.engine.qwen_asr import decoder
from asr_server.engine.qwen_asr.engine import QwenEngine
from asr_server.engine.qwen_asr.rows import AnswerRow, Choice
from E2Etest.drive import recordings
from tools.bench.engines import forced_tokens
from tools.gpu import engine_time

# Tokens at the end of a partial that turn out otherwise, and the natural log-probability that each token is given.
CHANGED_TOKENS, LOGPROB = 2, -0.1


@contextmanager
def scripted_answers() -> Iterator[None]:
    """Replace what the model chose by the script, before drafts are compared with it."""
    admit, note, scripts = QwenEngine.admit, decoder.note, dict[int, list[int]]()
    words = " ".join(clip.text for clip in recordings.clips() if clip.language == "English")
    known = dict[bool, tuple[int, ...]]()

    def admit_scripted(engine: QwenEngine, key: int, item: Utterance, *urgent: bool) -> None:
        forced = item.language is not None
        if forced not in known:
            assert engine._runtime is not None
            known[forced] = engine._runtime.prompts.answer(words, "English", forced=forced)
        script = list(known[forced][: forced_tokens(len(item.audio))])
        if item.session is not None and not item.last:
            script[-CHANGED_TOKENS:] = reversed(script[-CHANGED_TOKENS:])
        scripts[key] = script
        admit(engine, key, item, *urgent)

    def note_scripted(
        rows: Sequence[AnswerRow],
        proposals: Sequence[list[int]],
        found: Sequence[list[Choice]],
        end_ids: frozenset[int],
    ) -> None:
        end = min(end_ids)
        written = []
        for row, own in zip(rows, found, strict=True):
            wanted = [*row.forced, *scripts[row.key][len(row.forced) :]][len(row.ids) :]
            tokens = chain(wanted, repeat(end))
            written.append([choice._replace(token=next(tokens), logprob=LOGPROB) for choice in own])
        note(rows, proposals, written, end_ids)

    with (
        mock.patch.object(QwenEngine, "admit", admit_scripted),
        mock.patch.object(decoder, "note", note_scripted),
    ):
        yield


if __name__ == "__main__":
    if os.environ["ENGINE_PROCESS"] == "true":
        # The answers are made in the engine process, and its thread is the one that is timed.
        with mock.patch.object(remote, "_PROGRAM", ("tools.gpu.scripted_engine",)):
            sys.exit(main(["serve"]))
    with scripted_answers(), engine_time.timed(Path(os.environ["ENGINE_TIMES"])):
        sys.exit(main(["serve"]))
