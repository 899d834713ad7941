"""Log-mel frames in windows of at most 8 s: the input of every encoder, and the part of a live session that is cached
for its next partial."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from asr_server.engine.protocol import Option, Utterance
from asr_server.engine.qwen_asr import prefix_cache
from asr_server.engine.qwen_asr.frontend import Frames, LogMel, MelSettings, features, floor
from asr_server.engine.qwen_asr.prefix_cache import CachedPrefix, PrefixCache
from asr_server.engine.row import KeptTokens

if TYPE_CHECKING:
    from asr_server.engine.torch.passes import Capture


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """One of the windows of at most 8 s into which a clip is divided from its start."""

    mel: Frames  # (128, T)
    # The window is the whole clip. A clip shorter than a piece is convolved in its own width, as in the SDK.
    whole: bool
    tokens: int  # how many tokens it becomes


class Encoder(ABC):
    """An encoder, which also divides clips into windows and counts their tokens.

    The convolutions see one piece (100 frames, padded separately with zeros), and attention sees one window (800
    frames, 104 tokens). `on_layer` is called inside passes that may take long.
    """

    def __init__(self, n_window: int, n_window_infer: int) -> None:
        """Both numbers are from a checkpoint's configuration: half of a piece, and a window, in frames."""
        self.piece_frames = n_window * 2
        self.window_frames = n_window_infer
        self.piece_tokens = conv_tokens(self.piece_frames)
        self.window_tokens = self.piece_tokens * (self.window_frames // self.piece_frames)
        self.on_layer: Callable[[], None] = lambda: None

    def log_mel(self, settings: MelSettings) -> LogMel:
        return LogMel(settings)

    @abstractmethod
    def __call__(self, windows: Sequence[Window]) -> list[Any]:
        """Embeddings (tokens, output_dim) of each window, as the language model takes them."""

    def record(self, capture: Capture, on_each: Callable[[], None]) -> int:
        """Record passes, if this encoder can, and return how many. `on_each` is called before each."""
        return 0

    def tokens(self, frames: int) -> int:
        """Return how many tokens a clip of that many mel frames becomes."""
        whole, rest = divmod(frames, self.piece_frames)
        return whole * self.piece_tokens + conv_tokens(rest)

    def windows(self, mel: Frames, *, continued: bool = False) -> list[Window]:
        """Return the windows of log-mel frames (128, T); `continued` if they are the rest of a longer clip."""
        size = self.window_frames
        parts = [mel[:, begin : begin + size] for begin in range(0, mel.shape[1], size)]
        return [Window(part, not continued and len(parts) == 1, self.tokens(part.shape[1])) for part in parts]


def conv_tokens(frames: int) -> int:
    """Length after the three stride-2 convolutions (kernel 3, padding 1): ceil(frames / 8)."""
    return -(-frames // 8)


# Copies the keys and values of the given number of tokens from the start of a row.
CopyKv = Callable[[int], KeptTokens]


class Clip(Protocol):
    """The audio of one row. `tokens`: the number of its tokens. `kv`: keys and values that an earlier partial left, if
    any, of the prompt before the audio and of the audio's first tokens."""

    @property
    def tokens(self) -> int: ...

    @property
    def kv(self) -> KeptTokens | None: ...

    def windows(self) -> Sequence[Window]:
        """Return the windows to encode after `kv`. Every call returns all of them."""


class AudioInput(Protocol):
    """Makes clips, and caches the parts of them that the session's next partial can use."""

    def prepare(self, work: Utterance, before: tuple[int, ...]) -> Clip:
        """Return the clip of an utterance; `before`: the ids of the prompt before its audio."""

    def keep(self, work: Utterance, before: tuple[int, ...], clip: Clip, copy: CopyKv) -> None:
        """Cache what the session's next partial can use. Called after the row's prompt has run."""


@dataclass(frozen=True, slots=True, eq=False)
class WindowedClip:
    """A clip whose windows are to be encoded."""

    encoder: Encoder
    log10_mel: Frames  # of the whole clip, (128, T), not clamped
    clamp: Frames  # its lower bound, a single number
    cached: CachedPrefix | None  # the state of its first windows, from an earlier partial of the session

    @property
    def tokens(self) -> int:
        return self.encoder.tokens(self.log10_mel.shape[1])

    @property
    def kv(self) -> KeptTokens | None:
        return self.cached.kv if self.cached is not None else None

    def windows(self) -> Sequence[Window]:
        """Return the windows after the cached ones."""
        done = self.cached.log10_mel.shape[1] if self.cached is not None else 0
        return self.encoder.windows(features(self.log10_mel[:, done:], self.clamp), continued=self.cached is not None)


class WindowedAudio:
    """Keeps the closed windows of sessions in `cache`."""

    def __init__(self, encoder: Encoder, mel: LogMel, cache: PrefixCache) -> None:
        self._encoder, self._mel, self._cache = encoder, mel, cache

    def prepare(self, work: Utterance, before: tuple[int, ...]) -> WindowedClip:
        """Return the clip. It reuses the frames of closed windows from the session's last partial, and their keys and
        values if these are still exact."""
        cached = self._cache.get(work.session) if work.session is not None else None
        if not isinstance(cached, CachedPrefix) or not cached.continues(work.audio, before, self._mel.reach):
            cached = None
        log10_mel = self._mel.log10_mel(work.audio, cached.log10_mel.shape[1] if cached is not None else 0)
        if cached is not None:
            log10_mel = self._mel.join([cached.log10_mel, log10_mel])
        clamp = floor(log10_mel)
        if cached is not None and not cached.exact_under(float(clamp)):
            cached = None
        return WindowedClip(self._encoder, log10_mel, clamp, cached)

    def keep(self, work: Utterance, before: tuple[int, ...], clip: Clip, copy: CopyKv) -> None:
        """Keep the closed windows, if there are more than before."""
        assert isinstance(clip, WindowedClip)
        assert work.session is not None
        closed_samples = self._encoder.window_frames * self._mel.hop
        windows = max(0, len(work.audio) - self._mel.reach) // closed_samples
        samples = windows * closed_samples
        if windows == 0 or (clip.cached is not None and samples == clip.cached.samples):
            return
        log10_mel = self._mel.join([clip.log10_mel[:, : windows * self._encoder.window_frames]])
        cached = CachedPrefix(
            before=before,
            samples=samples,
            probe=prefix_cache.probe(work.audio, samples),
            log10_mel=log10_mel,
            lowest=float(log10_mel.min()),
            floor=float(clip.clamp),
            kv=copy(len(before) + windows * self._encoder.window_tokens),
        )
        self._cache.put(work.session, cached)


@dataclass(frozen=True, slots=True)
class LoadedEncoder:
    """An encoder and the function that creates its audio input."""

    encoder: Encoder
    audio: Callable[[LogMel, PrefixCache], AudioInput]
    options: tuple[Option, ...] = ()  # the plan's options, completed by loading
    uses_tower: bool = True  # it computes with the weights of the SDK's tower
