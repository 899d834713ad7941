"""Voice detection and end-of-turn estimates for all live sessions, each on its own thread.

On the event loop, the network of `audio/segmentation.py` would take more time than everything else that a session
needs. Only the session itself waits for its end-of-turn estimate. The number of waiting estimates is limited, and
without an estimate the pause rule decides.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from loguru import logger

from asr_server.audio.segmentation import MOST_FRAMES, SpeechProbability
from asr_server.core.audio import FRAME_SAMPLES, SAMPLE_RATE
from asr_server.engine.feature import EndOfTurnModel
from asr_server.live.machine.events import Event, Samples
from asr_server.live.machine.framing import Block, to_samples
from asr_server.live.machine.session import LiveMachine
from asr_server.live.machine.utterance import Frame
from asr_server.live.session_stats import EstimateResult, LiveMetrics
from asr_server.net.loop_time import slice_queue

# The shortest time between two calls for several sessions: with 200 sessions it saves a third of the processor time.
_TICK_S = 0.005
# The usual loop time of a session that continues with its frames, of at most 128 ms. If a whole slice were counted,
# only two sessions could continue in a round of the loop, and 200 sessions would wait for many rounds.
_CONTINUE_S = 0.0001


# The samples of a block, (n,), and the probability of each of their frames.
_Scored = tuple[Samples, list[float]]


@dataclass(slots=True, eq=False)
class _Piece:
    """Audio of one session that waits for its speech probabilities."""

    stream: SpeechProbability
    block: Block
    scored: asyncio.Future[_Scored | Exception]


class VoiceDetector:
    """The voice detector of all sessions: one call of the network, on a thread, for all waiting sessions.

    A session waits for the frames of an event before it continues with the next one. So at most one piece of audio of
    each session waits here, and each session has the same share of the thread. Recordings use other threads.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "voice-detection")
        self._waiting: deque[_Piece] = deque()
        self._waiting_frames = 0  # an upper bound of the frames of `_waiting`
        self._is_due = False  # a call is scheduled
        self._calls = 0  # running or queued on the thread
        self._next_s = 0.0  # earliest start of the next call, by the loop's clock

    async def frames(self, machine: LiveMachine, stream: SpeechProbability, event: Event) -> list[Frame]:
        """Return the frames that the event completes, with their speech probabilities.

        `stream`: the session's state of the network. Returns in the session's turn to use the event loop.
        """
        block = machine.block(event)
        if block is None:
            return []
        piece = _Piece(stream, block, asyncio.get_running_loop().create_future())
        self._waiting.append(piece)
        self._waiting_frames += block.most_frames
        self._begin_soon()
        found = await piece.scored
        if isinstance(found, Exception):
            raise found
        samples, scores = found
        return [Frame(samples[FRAME_SAMPLES * n : FRAME_SAMPLES * (n + 1)], score) for n, score in enumerate(scores)]

    def _begin_soon(self) -> None:
        # A full second call is queued while the first one runs: with 400 sessions the thread would otherwise wait half
        # of the time for the event loop, which hands out the results.
        if self._waiting and not self._is_due and self._calls < (2 if self._waiting_frames >= MOST_FRAMES else 1):
            self._is_due = True
            asyncio.get_running_loop().call_at(self._next_s, self._begin)

    def _begin(self) -> None:
        """Call the network with the waiting audio that fits into one call."""
        batch: list[_Piece] = []
        loop, room = asyncio.get_running_loop(), MOST_FRAMES
        while self._waiting and (not batch or self._waiting[0].block.most_frames <= room):
            room -= self._waiting[0].block.most_frames
            batch.append(self._waiting.popleft())
        self._waiting_frames -= MOST_FRAMES - room
        self._is_due, self._calls = False, self._calls + 1
        # A single session does not wait, and neither do sessions for which this call had no room.
        self._next_s = 0.0 if len(batch) <= 1 or self._waiting else loop.time() + _TICK_S
        running = loop.run_in_executor(self._thread, _scored, [(piece.stream, piece.block) for piece in batch])
        running.add_done_callback(partial(self._on_scored, batch))
        self._begin_soon()

    def _on_scored(self, batch: list[_Piece], running: asyncio.Future[list[_Scored | Exception]]) -> None:
        for piece, found in zip(batch, running.result(), strict=True):
            # Sessions continue in turns: all at once would block the event loop.
            slice_queue().soon(partial(_set_result, piece.scored, found), _CONTINUE_S)
        self._calls -= 1
        self._begin_soon()


def _set_result(scored: asyncio.Future[_Scored | Exception], found: _Scored | Exception) -> None:
    if not scored.done():  # done if the session has ended meanwhile
        scored.set_result(found)


def _scored(blocks: list[tuple[SpeechProbability, Block]]) -> list[_Scored | Exception]:
    """Return the samples of each block and the probabilities of its frames. Runs on the thread."""
    found = _samples([block for _, block in blocks])
    whole = [
        (stream, _frames(samples))
        for (stream, _), samples in zip(blocks, found, strict=True)
        if not isinstance(samples, Exception) and len(samples)
    ]
    scores = iter(_probabilities(whole))
    results: list[_Scored | Exception] = []
    for samples in found:
        if isinstance(samples, Exception):
            results.append(samples)
        else:
            own = next(scores) if len(samples) else []
            results.append(own if isinstance(own, Exception) else (samples, own))
    return results


def _samples(blocks: list[Block]) -> list[Samples | Exception]:
    """Return the samples of each block, each in its own memory: a view would keep the memory of all blocks."""
    # One operation for all blocks that need no resampling, since the thread waits for the interpreter after each one.
    whole = to_samples(b"".join(block.pcm for block in blocks if block.needs_no_resampling)).data.cast("B")
    found: list[Samples | Exception] = []
    at = 0
    for block in blocks:
        if block.needs_no_resampling:
            end = at + 2 * len(block.pcm)  # float32 takes twice as much
            found.append(np.frombuffer(whole[at:end].tobytes(), np.float32))
            at = end
            continue
        try:
            found.append(block.samples())
        except Exception as error:
            found.append(error)
    return found


def _frames(samples: Samples) -> Samples:
    """Return the samples as (n, 512). The last frame before a flush is padded with silence."""
    if missing := -len(samples) % FRAME_SAMPLES:
        samples = np.pad(samples, (0, missing))
    return samples.reshape(-1, FRAME_SAMPLES)


def _probabilities(pieces: list[tuple[SpeechProbability, Samples]]) -> list[list[float] | Exception]:
    """Return the probabilities of each piece. After a failure, try each by itself, so that only one session fails."""
    try:
        return [scores.tolist() for scores in SpeechProbability.push_together(pieces)] if pieces else []
    except Exception as error:
        return [error] if len(pieces) == 1 else [scores for piece in pieces for scores in _probabilities([piece])]


# Estimates that wait or run. Each takes about 45 ms of a core, so the last one arrives after about 0.7 s, hardly later
# than the decision of the pause rule.
_MOST_WAITING = 16


class EndOfTurnEstimator:
    """Runs the end-of-turn model on its own thread. Everything except the model's call runs on the event loop."""

    def __init__(self, model: EndOfTurnModel, metrics: LiveMetrics) -> None:
        self._model = model
        self._estimates = metrics.estimates
        self._thread = ThreadPoolExecutor(1, "end-of-turn")
        self._waiting = 0
        self._has_failed = False
        self._is_loaded = False

    def warm_up(self) -> None:
        """Start loading the model on its thread, so that the first pause need not wait for it."""
        if not self._is_loaded:
            self._is_loaded = True
            self._thread.submit(self._load)

    async def probability(self, speech: Samples) -> float | None:
        """Return the model's estimate, or None if it fails or if too many estimates wait."""
        if self._waiting >= _MOST_WAITING:
            self._estimates.labels(EstimateResult.SKIPPED).inc()
            return None
        self._waiting += 1
        # Not cancelled with its session: it would count as done while it still occupies the thread.
        running = asyncio.get_running_loop().run_in_executor(self._thread, self._model.probability, speech)
        running.add_done_callback(self._on_done)
        try:
            return await asyncio.shield(running)
        except Exception as error:  # without an estimate the pause rule decides
            if not self._has_failed:
                self._has_failed = True
                logger.opt(exception=error).warning("the end of turns cannot be estimated; the pause rule decides")
            return None

    def _on_done(self, running: asyncio.Future[float]) -> None:
        self._waiting -= 1
        failed = running.cancelled() or running.exception() is not None
        self._estimates.labels(EstimateResult.FAILED if failed else EstimateResult.ESTIMATED).inc()

    def _load(self) -> None:
        try:
            self._model.probability(np.zeros(SAMPLE_RATE, np.float32))
        except Exception as error:  # the first estimate reports what is wrong
            logger.debug("the model of the end of turns was not loaded", error=type(error).__name__)
