"""The places from which another server can go on: a byte, a number of actions, and the rules there. Pure.

An utterance that has no final yet is transcribed again from its beginning, with the rules that it began with, and the
actions since then are repeated in their places. All that came before is finished.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from asr_server.core.audio import SAMPLE_RATE
from asr_server.live.machine.events import Action, Checkpoint, Final, ResetDone, TurnConfig, UtteranceStarted

EVERY_SAMPLES = 5 * SAMPLE_RATE  # of silence, between two points
EVERY_ACTIONS = 64  # in silence: what a client keeps of actions alone is bounded too
_ANCHORS_KEPT = 256


@dataclass(frozen=True, slots=True)
class HandoverPoint:
    """A place where another session goes on: bytes and actions of this input, samples and utterances of its output."""

    received_bytes: int
    actions: int
    samples: int
    utterances: int
    rules: TurnConfig
    in_speech: bool  # an utterance ended there in the middle of speech


@dataclass(frozen=True, slots=True)
class _Beginning:
    """The beginning of an utterance: its sample, the number of actions before it, and its rules."""

    samples: int
    actions: int
    rules: TurnConfig


class BytePositions:
    """Maps samples at 16 kHz to the bytes of the input that they were made from.

    Both run evenly, but for half a sample that a reset discards, and for what resampling rounds where a flush or a
    reset ends its stream. From there on they are counted afresh.
    """

    def __init__(self, input_rate_hz: int) -> None:
        self._rate_hz = input_rate_hz
        self._sample_began = 0  # a byte with which a sample began
        self._anchors: deque[tuple[int, int]] = deque([(0, 0)], maxlen=_ANCHORS_KEPT)  # samples, bytes

    def on_stream_end(self, samples: int, received_bytes: int, *, discards_half: bool) -> None:
        """Note the end of a stream: all whole samples of the input are counted now."""
        half = (received_bytes - self._sample_began) % 2
        if discards_half:
            self._sample_began = received_bytes
        else:
            received_bytes -= half
        if self.of(samples) != received_bytes:
            self._anchors.append((samples, received_bytes))

    def of(self, samples: int) -> int | None:
        """Return the byte of a sample, or None for a place that is no longer known."""
        for at, received_bytes in reversed(self._anchors):
            if at <= samples:
                return received_bytes + 2 * round((samples - at) * self._rate_hz / SAMPLE_RATE)
        return None


class HandoverPoints:
    """Finds the points of one session. Its methods are called for each event, in order, after it was processed."""

    def __init__(self, input_rate_hz: int) -> None:
        self.received_bytes = self.actions = 0  # processed
        self._positions = BytePositions(input_rate_hz)
        self._began: dict[int, _Beginning] = {}  # of the utterances without a final
        self._due_samples, self._due_actions = EVERY_SAMPLES, EVERY_ACTIONS

    def on_audio(self, size_bytes: int) -> None:
        """Note that these bytes were processed."""
        self.received_bytes += size_bytes

    def on_action(self) -> None:
        """An action of the client was processed, or refused."""
        self.actions += 1

    def on_stream_end(self, clock_samples: int, *, discards_half: bool) -> None:
        """A flush or a reset was processed."""
        self._positions.on_stream_end(clock_samples, self.received_bytes, discards_half=discards_half)

    def on_output(self, output: Action, rules: TurnConfig) -> bool:
        """Note an output of the machine; `rules` are its present ones. Returns True if audio has its final now.

        An utterance that begins while an action is processed begins before it: call `on_action` afterwards.
        """
        match output:
            case UtteranceStarted(utterance=number, start_samples=start):
                self._began[number] = _Beginning(start, self.actions, rules)
            case Final(utterance=number):
                self._began.pop(number, None)
                return output.start_samples < output.end_samples
            case ResetDone(utterance=int(number)):
                self._began.pop(number, None)
        return False

    def is_due(self, clock_samples: int) -> bool:
        """True if it is time for another point, by the audio and the actions since the last one."""
        return clock_samples >= self._due_samples or self.actions >= self._due_actions

    def point(self, checkpoint: Checkpoint, clock_samples: int, rules: TurnConfig) -> HandoverPoint | None:
        """Return the newest point, or None if it is not known. `rules`: those of the next utterance."""
        self._due_samples, self._due_actions = clock_samples + EVERY_SAMPLES, self.actions + EVERY_ACTIONS
        number, samples = checkpoint.utterance, checkpoint.end_samples
        began = self._began.get(number + 1, _Beginning(samples, self.actions, rules))
        received_bytes = self._positions.of(samples)
        if received_bytes is None:
            return None
        return HandoverPoint(received_bytes, began.actions, samples, number, began.rules, checkpoint.in_speech)
