"""The network of a Piper voice on onnxruntime: phonemes to frames, and frames to samples a window at a time."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from asr_server.core.environment import onnx_session
from asr_server.core.errors import ModelUnavailable
from asr_server.features.speech_output.engines.piper import graph
from asr_server.features.speech_output.engines.piper.voice import END, PAD, START, PiperVoice

if TYPE_CHECKING:
    import onnxruntime

# In voices of medium quality, a sample depends on 10 frames on each side. A window has more frames than that around it.
_CONTEXT = 16
# The first window is short, so that the first samples are ready soon. The next ones are longer, since each window costs
# the computation of the frames around it.
_WINDOWS = (24, 96)
# Channels of the random numbers: for the two flows of a duration, and for the features of a frame.
_CHANNELS = {graph.NOISES[0]: 2, graph.NOISES[1]: 192}
# Random numbers are drawn for this many frames a phoneme, and for this many more. A voice speaks 15 phonemes a second
# or more, in 86 frames.
_FRAMES_OF_A_PHONEME, _FRAMES_MORE = 32, 256


class PiperNetwork:
    """A loaded voice. For one thread."""

    def __init__(self, voice: PiperVoice) -> None:
        """Raises `ModelUnavailable`."""
        self._voice = voice
        try:
            voice.check_file()
            with voice.path.open("rb") as file:
                parts = graph.divide(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            self._acoustic = session(parts.acoustic)
            self._vocoder = session(parts.vocoder)
        except Exception as error:  # onnxruntime's exceptions have no common base class
            reason = str(error) if isinstance(error, ValueError) else type(error).__name__
            raise ModelUnavailable(f"The voice {voice.name} cannot be loaded: {reason}.") from error

    def frames(self, phonemes: Sequence[str], speaker: int, speed: float, seed: Sequence[int]) -> NDArray[np.float32]:
        """Return the frames (1, channels, n) of phonemes that the voice knows. At speed 2 they are half as many."""
        voice = self._voice
        ids = [one for sign in (START, *phonemes) for one in (*voice.ids[sign], *voice.ids[PAD])] + [*voice.ids[END]]
        random = np.random.default_rng(seed)
        length_scale = voice.length_scale / speed
        most_frames = int((_FRAMES_OF_A_PHONEME * len(phonemes) + _FRAMES_MORE) * max(1.0, length_scale))
        values: dict[str, NDArray[Any]] = {
            "input": np.array([ids], np.int64),
            "input_lengths": np.array([len(ids)], np.int64),
            "scales": np.array([voice.noise_scale, length_scale, voice.duration_noise_scale], np.float32),
            "sid": np.array([speaker], np.int64),
        }
        for name, length in zip(graph.NOISES, (len(ids), most_frames), strict=True):
            values[name] = random.standard_normal((1, _CHANNELS[name], length), np.float32)
        return _run(self._acoustic, values)

    def samples(self, frames: NDArray[np.float32], speaker: int) -> Iterator[NDArray[np.float32]]:
        """Yield the samples (n,) at the voice's rate, one window at a time."""
        count, begin, windows = frames.shape[2], 0, list(_WINDOWS)
        while begin < count:
            end = min(count, begin + (windows.pop(0) if len(windows) > 1 else windows[0]))
            first, last = max(0, begin - _CONTEXT), min(count, end + _CONTEXT)
            window = np.ascontiguousarray(frames[:, :, first:last])
            samples = _run(self._vocoder, {graph.FRAMES: window, "sid": np.array([speaker], np.int64)}).reshape(-1)
            hop = len(samples) // (last - first)
            yield samples[(begin - first) * hop : (end - first) * hop]
            begin = end


def _run(part: onnxruntime.InferenceSession, values: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
    """Run a part on the values that it has inputs for, and return its output. A voice of one speaker has no `sid`."""
    (found,) = part.run(None, {one.name: values[one.name] for one in part.get_inputs()})
    return np.asarray(found, np.float32)


def session(model: bytes) -> onnxruntime.InferenceSession:
    # Read from a file, since a session that gets bytes keeps them for as long as it lives.
    file = os.memfd_create("piper")
    try:
        with open(file, "wb", closefd=False) as written:
            written.write(model)
        return onnx_session(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
