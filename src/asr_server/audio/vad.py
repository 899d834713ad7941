"""The probability of speech in each frame of 32 ms, by Silero VAD on onnxruntime, for many streams in one call.

Silero's network takes frames of exactly 512 samples at 16 kHz, each preceded by the last 64 samples of the one before,
and keeps an LSTM state between frames. `silero_batch.onnx` (made by `tools/voice_detector.py`) has its layers for the
frames of many streams at once, and reads its weights from `silero_vad_16k_sequence.onnx`, a file of the package
silero-vad 6.2.3 (MIT; NOTICE has its source and checksum). Its probabilities are within 2e-5 of those of the package's
own networks (263 s of real speech, 2026-11).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asr_server.core.audio import FRAME_MS, FRAME_SAMPLES
from asr_server.core.environment import prefer

if TYPE_CHECKING:
    import onnxruntime

Samples = NDArray[np.float32]
Probabilities = NDArray[np.float32]

# onnxruntime refuses weights if their path is a symbolic link that leaves the folder of the graph.
GRAPH = Path(__file__).resolve().with_name("silero_batch.onnx")
WEIGHTS = GRAPH.with_name("silero_vad_16k_sequence.onnx")
MOST_FRAMES = 128  # of a call: some 3 ms; larger ones are no faster, and live speech would wait longer for them
_STATE_SIZE = 2 * 128 + 64  # hidden and cell of the LSTM, and the end of the frame before
_USUAL_PEAK = 0.5
_MOST_GAIN = 8.0
_PEAK_FADE = 0.5 ** (FRAME_MS / 2000)  # by half in 2 s: another speaker may be quieter


class SpeechProbability:
    """Silero VAD, frame by frame, with the state of one stream. Use one object for each stream.

    The network is loaded once a process, at the first use; it is shared, the stream state is not.

    Quiet audio is amplified first: the network hears speech that is 24 dB below the usual level late or not at all.
    """

    def __init__(self) -> None:
        self._state = np.zeros(_STATE_SIZE, np.float32)
        self._peak = _USUAL_PEAK / _MOST_GAIN

    def push(self, audio: Samples) -> Probabilities:
        """The next samples, (n,) float32 -> (ceil(n / 512),) float32 in [0, 1]. Silence completes the last frame."""
        whole = np.pad(audio, (0, -len(audio) % FRAME_SAMPLES)).reshape(-1, FRAME_SAMPLES)
        parts = [whole[at : at + MOST_FRAMES] for at in range(0, len(whole), MOST_FRAMES)]
        return np.concatenate([np.zeros(0, np.float32), *(self.push_together([(self, part)])[0] for part in parts)])

    @staticmethod
    def push_together(pieces: Sequence[tuple[SpeechProbability, Samples]]) -> list[Probabilities]:
        """Return the probabilities of the next frames, (n, 512) and at least one, of each of several streams, by one
        call.

        If it raises, no stream has changed.
        """
        streams = [stream for stream, _ in pieces]
        counts = np.array([len(frames) for _, frames in pieces])
        frames = np.concatenate([frames for _, frames in pieces])
        ends, numbers = np.cumsum(counts), np.arange(len(frames))
        gains, peaks = _gains([stream._peak for stream in streams], counts.tolist(), np.abs(frames).max(axis=1))
        rows = np.repeat(np.arange(len(streams)), counts)  # of each frame: its stream
        steps = numbers - (ends - counts)[rows]  # of each frame: its place in the piece
        before = len(streams) + numbers - 1
        before[ends - counts] = np.arange(len(streams))
        table = np.zeros((counts.max(), len(streams)), np.int64)
        table[steps, rows] = numbers
        inputs = {
            "frames": frames,
            "gains": gains,
            "before": before,
            "last": len(streams) + ends - 1,
            "table": table,
            "counts": counts.astype(np.int32),
            "states": np.stack([stream._state for stream in streams]),
        }
        scores, states = load_voice_detector().run(["probabilities", "next_states"], inputs)
        for stream, state, peak in zip(streams, states, peaks, strict=True):
            stream._state, stream._peak = state.copy(), peak  # a view would keep the states of all
        return np.split(scores[steps, 0, rows, 0], ends[:-1])


def _gains(peaks: list[float], counts: list[int], loudest: Samples) -> tuple[Samples, list[float]]:
    """Return the gain of each frame, (k, 1), which brings the recent peak of its stream to the usual one, and the peaks
    after the frames. A peak fades slowly. `loudest`: the loudest sample of each frame, one stream after the other."""
    gains, after, levels = [], [], iter(loudest.tolist())
    for peak, count in zip(peaks, counts, strict=True):
        for level in islice(levels, count):
            peak = max(level, peak * _PEAK_FADE, _USUAL_PEAK / _MOST_GAIN)
            gains.append(max(1.0, _USUAL_PEAK / peak))
        after.append(peak)
    return np.array(gains, np.float32)[:, None], after


@functools.cache
def load_voice_detector() -> onnxruntime.InferenceSession:
    """Load the network once a process. Several threads may call its `run` at once."""
    prefer("ORT_DISABLE_TELEMETRY", "1")  # must be set before the import, or its builds report to their maker
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # a call takes 3 ms: more threads cost more
    options.enable_cpu_mem_arena = False  # it would keep what the longest call took
    options.enable_mem_pattern = False  # it would keep a plan of the memory for each combination of sizes
    return onnxruntime.InferenceSession(str(GRAPH), options, providers=["CPUExecutionProvider"])
