"""The audio encoder on a CPU, as compiled graphs: pieces first, then windows of their states, in batches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from asr_server.engine.openvino import encoder_graph
from asr_server.engine.openvino.encoder_graph import EncoderWeights
from asr_server.engine.openvino.library import NumberFormats
from asr_server.engine.openvino.text_graph import Matrix
from asr_server.engine.qwen_asr.windows import Encoder, Window, conv_tokens

# Pieces per call: few, so that the result of one convolution stays in the caches for the next.
_PIECES = 4
# Windows per call.
_WINDOWS = 4
# Pieces whose frames and states are cached, 0.1 MB each in the 0.6B: the partials of a live session share all pieces
# except the last one or two, and the convolutions take two thirds of an encoder's time.
KEPT_PIECES = 256

Floats = NDArray[np.float32]


class CompiledEncoder(Encoder):
    """True 8 s windows, which are rows of a batch."""

    def __init__(
        self, n_window: int, n_window_infer: int, weights: EncoderWeights, matrix: Matrix, formats: NumberFormats
    ) -> None:
        super().__init__(n_window, n_window_infer)
        self._pieces = formats.compiled(encoder_graph.pieces(weights, matrix), convolves=True).create_infer_request()
        self._windows = formats.compiled(encoder_graph.windows(weights, matrix)).create_infer_request()
        self._matrix = matrix  # keeps the memory that the graphs read
        self._positions = weights.positions(self.piece_tokens)
        self._kept: OrderedDict[bytes, Floats] = OrderedDict()  # states by frames, the least recently used first

    def __call__(self, windows: Sequence[Window]) -> list[Floats]:
        return self.embeddings(self.states(windows))

    def embeddings(self, states: Sequence[Floats]) -> list[Floats]:
        """States (tokens, d_model) of windows to embeddings (tokens, output_dim)."""
        groups = (states[begin : begin + _WINDOWS] for begin in range(0, len(states), _WINDOWS))
        return [rows for group in groups for rows in self._attend(group)]

    def states(self, windows: Sequence[Window]) -> list[Floats]:
        """Return the states (tokens, d_model) of each window."""
        size = self.piece_frames
        # A clip that is shorter than a piece is convolved in its own width, all others in pieces.
        short = {n for n, window in enumerate(windows) if window.whole and window.mel.shape[1] < size}
        cut = [self._cut(window.mel) for n, window in enumerate(windows) if n not in short]
        convolved = iter(self._convolve_once([piece for pieces in cut for piece in pieces]))
        found = []
        for n, window in enumerate(windows):
            if n in short:
                found.append(self.convolve(window.mel[None, None])[0])
            else:
                count = -(-window.mel.shape[1] // size)
                found.append(np.concatenate([next(convolved) for _ in range(count)])[: window.tokens])
        return found

    def _cut(self, mel: Floats) -> Floats:
        """Return the pieces (n, 1, 128, 100) of frames (128, T), the last one filled with zeros."""
        padded = np.pad(mel, ((0, 0), (0, -mel.shape[1] % self.piece_frames)))
        return padded.reshape(len(mel), -1, self.piece_frames).transpose(1, 0, 2)[:, None]

    def _convolve_once(self, pieces: Sequence[Floats]) -> list[Floats]:
        """Pieces (1, 128, 100) to states (13, d_model). Convolves only pieces that are not cached."""
        keys = [piece.tobytes() for piece in pieces]
        known = {key: self._kept[key] for key in keys if key in self._kept}
        missing = dict(zip(keys, pieces, strict=True))
        new = [key for key in missing if key not in known]
        for begin in range(0, len(new), _PIECES):
            group = new[begin : begin + _PIECES]
            known.update(zip(group, self.convolve(np.stack([missing[key] for key in group])), strict=True))
        for key in keys:
            self._kept[key] = known[key]
            self._kept.move_to_end(key)
        while len(self._kept) > KEPT_PIECES:
            self._kept.popitem(last=False)
        return [known[key] for key in keys]

    def convolve(self, pieces: Floats) -> Floats:
        """Pieces (n, 1, 128, T) to states (n, ceil(T / 8), d_model)."""
        self.on_layer()
        positions = self._positions[: conv_tokens(pieces.shape[-1])]
        given = {"mel": np.ascontiguousarray(pieces, np.float32), "positions": positions}
        found: Floats = self._pieces.infer(given)[0]
        return found

    def _attend(self, windows: Sequence[Floats]) -> list[Floats]:
        """States (n_i, d_model), n_i <= 104, to embeddings (n_i, output_dim)."""
        self.on_layer()
        lengths = [len(states) for states in windows]
        longest = max(lengths)
        x = np.zeros((len(windows), longest, windows[0].shape[1]), np.float32)
        mask = np.zeros((len(windows), 1, 1, longest), np.float32)
        for n, states in enumerate(windows):
            x[n, : len(states)] = states
            mask[n, ..., len(states) :] = -np.inf
        found = self._windows.infer({"states": x, "mask": mask})[0]
        return [rows[:length] for rows, length in zip(found, lengths, strict=True)]
