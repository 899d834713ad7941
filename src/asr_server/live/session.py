"""The live session as a state machine: takes events, returns actions. The transitions are in `table.py`.

Invariants (tested in `session_invariants_test`): the result does not depend on how the bytes were cut; every sample is
in one utterance, in silence, discarded on request, or in the open buffer; committed text is a prefix of all later text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from asr_server.audio.segmentation.endpoint import Endpointer, VoiceActivity
from asr_server.core.audio import FRAME_SAMPLES, SAMPLE_RATE, ms_to_frames
from asr_server.live.agreement import CommitRules
from asr_server.live.events import (
    Action,
    Audio,
    Checkpoint,
    Close,
    Configure,
    Configured,
    Detection,
    Ending,
    Event,
    Flush,
    GetCheckpoint,
    Interrupted,
    Partial,
    Reset,
    ResetDone,
    Samples,
    TranscribeFailed,
    TranscribeResult,
    TurnConfig,
    UtteranceEnded,
    UtteranceStarted,
)
from asr_server.live.framing import Framing, Resample
from asr_server.live.request_scheduler import RequestScheduler
from asr_server.live.table import TABLE, Signal, State, TurnAction
from asr_server.live.utterance import Frame, OpenUtterance

# Speech probability of the next 512 samples of one stream, float32 -> [0, 1].
Probability = Callable[[Samples], float]

_SIGNALS = {
    VoiceActivity.SILENT: Signal.SILENT,
    VoiceActivity.ONSET: Signal.ONSET,
    VoiceActivity.VOICED: Signal.VOICED,
    VoiceActivity.PAUSED: Signal.PAUSED,
    VoiceActivity.ENDPOINT: Signal.ENDPOINT,
}
_ENDINGS = {
    Signal.ENDPOINT: Ending.PAUSE,
    Signal.FULL: Ending.CUT,
    Signal.FLUSH: Ending.FLUSH,
    Signal.CLOSE: Ending.CLOSE,
}


@dataclass(frozen=True, slots=True, eq=False)
class LiveMachineConfig:
    """What holds for the whole session, and the turn configuration it begins with.

    `voice`: makes a fresh speech probability for `Detection.VOICE`. `resampler`: makes a fresh stream from an input
    rate in Hz to 16 kHz. `partial_every_samples`: new speech between two partials.
    `tail_samples`: audio behind the speech that belongs to the utterance. `separate_final_engine`: partials come from a
    less accurate engine than finals, so none of them may serve as a final.
    """

    voice: Callable[[], Probability]
    resampler: Callable[[int], Resample]
    rules: TurnConfig = field(default_factory=TurnConfig)
    input_rate_hz: int = SAMPLE_RATE
    partial_every_samples: int = 7_200
    tail_samples: int = 2_400
    max_utterance_samples: int = 30 * SAMPLE_RATE
    commit: CommitRules = field(default_factory=CommitRules)
    separate_final_engine: bool = False


@dataclass(frozen=True, slots=True)
class AudioAccount:
    """Where the samples at 16 kHz went that have come so far: `received` is the sum of the others."""

    received: int
    in_utterances: int
    in_silence: int
    discarded: int
    open: int


class LiveMachine:
    """Takes events with `receive` and returns actions, which the caller performs in order."""

    def __init__(self, config: LiveMachineConfig) -> None:
        self._config = config
        self._out: list[Action] = []
        self._requests = RequestScheduler(config.separate_final_engine, self._out)
        # After this place the utterance may be cut, and a committed word cannot move to the next utterance.
        self._commit = replace(config.commit, latest_samples=2 * config.max_utterance_samples // 3)
        self._framing = Framing(config.input_rate_hz, config.resampler)
        self._state = State.LISTENING
        self._utterance: OpenUtterance | None = None
        self._prefix_audio: deque[Frame] = deque()
        self._frame = Frame(np.zeros(0, np.float32), 0.0)
        self._ending = Ending.PAUSE
        self._fresh_samples = 0  # speech since the last partial was requested
        self._number = self._clock = self._in_utterances = self._in_silence = self._discarded = 0
        self._next_rules: TurnConfig | None = None
        self._apply(config.rules)
        self._actions: dict[TurnAction, Callable[[], None]] = {
            TurnAction.NOTHING: lambda: None,
            TurnAction.KEEP: self._keep,
            TurnAction.OPEN: self._open,
            TurnAction.EXTEND: self._extend,
            TurnAction.EXTEND_PAUSE: self._extend_pause,
            TurnAction.END: self._end,
            TurnAction.CUT: self._cut,
            TurnAction.END_FULL: self._finish,
            TurnAction.FINISH: self._finish,
            TurnAction.ANSWER_FLUSH: self._answer_flush,
            TurnAction.COUNT_SILENCE: lambda: self._trim(0),
            TurnAction.DISCARD: self._discard,
            TurnAction.IGNORE: self._ignore,
            TurnAction.CATCH_UP: self._catch_up,
        }

    # -- for the caller ----------------------------------------------------------------------------------------------

    def receive(self, event: Event) -> list[Action]:
        """Process one event. Events may come in any order."""
        match event:
            case Audio(pcm=pcm):
                self._process_frames(self._framing.push(pcm))
            case Flush():
                self._process_frames(self._framing.flush())
                self._step(Signal.FLUSH)
            case Reset():
                self._reset()
            case Configure():
                self._configure(event)
            case Interrupted():
                self._step(Signal.INTERRUPTED)
            case Close():
                self._process_frames(self._framing.flush())
                self._step(Signal.CLOSE)
            case GetCheckpoint():
                self._out.append(self._checkpoint())
            case TranscribeResult():
                self._requests.on_result(event)
            case TranscribeFailed():
                self._requests.on_failure(event)
        actions, self._out[:] = list(self._out), []
        return actions

    @property
    def state(self) -> State:
        """The present state."""
        return self._state

    @property
    def rules(self) -> TurnConfig:
        """The turn configuration of the next utterance."""
        return self._next_rules or self._rules

    @property
    def account(self) -> AudioAccount:
        """Where the samples went."""
        prefix = sum(len(frame.samples) for frame in self._prefix_audio)
        in_utterance = self._utterance.samples if self._utterance else 0
        buffered = self._framing.buffered_samples
        return AudioAccount(
            received=self._clock + buffered,
            in_utterances=self._in_utterances,
            in_silence=self._in_silence,
            discarded=self._discarded,
            open=prefix + in_utterance + buffered,
        )

    @property
    def clock_samples(self) -> int:
        """The session's time: audio received so far that is in frames."""
        return self._clock

    @property
    def backlog_samples(self) -> int:
        """Audio of ended utterances without a final. The caller stops giving audio when this grows large."""
        return self._requests.backlog_samples

    @property
    def busy(self) -> bool:
        """Whether a result of the engine or a final is still to come."""
        return self._requests.busy

    @property
    def current_partial(self) -> Partial | None:
        """The last partial of the open utterance; None when none is open or it has no text yet."""
        partial = self._utterance.partial() if self._utterance else None
        return partial if partial and partial.text else None

    # -- events ------------------------------------------------------------------------------------------------------

    def _process_frames(self, frames: Iterable[Samples]) -> None:
        for samples in frames:
            self._clock += len(samples)
            self._frame = Frame(samples, self._probability_of(samples))
            self._step(self._signal(self._frame.probability))
            utterance = self._utterance
            if utterance and utterance.samples >= self._config.max_utterance_samples:
                self._step(Signal.FULL)

    def _step(self, signal: Signal) -> None:
        step = TABLE[self._state, signal]
        self._ending = _ENDINGS.get(signal, Ending.PAUSE)
        self._state = step.next
        self._actions[step.action]()
        if self._utterance is None and self._next_rules is not None:
            self._apply(self._next_rules)

    def _reset(self) -> None:
        discarded = self._utterance.number if self._utterance else None
        rest = self._framing.flush()
        self._framing.clear()
        self._step(Signal.RESET)
        unframed = sum(len(samples) for samples in rest)
        self._clock += unframed
        self._discarded += unframed
        self._apply(self._rules)
        self._out.append(ResetDone(discarded))

    def _configure(self, event: Configure) -> None:
        if event.input_rate_hz is not None:
            self._process_frames(self._framing.flush())
            self._framing = Framing(event.input_rate_hz, self._config.resampler)
        self._next_rules = event.rules
        if self._utterance is None:
            self._apply(event.rules)
        elif Detection.MANUAL in {self._rules.detection, event.rules.detection}:
            # At once: the open utterance would otherwise wait for ever for the caller's flush, or not wait for it.
            self._apply(event.rules)
            self._endpointer.resume()
        self._out.append(Configured(event.rules, event.asked_language))

    def _apply(self, rules: TurnConfig) -> None:
        self._rules, self._next_rules = rules, None
        self._endpointer = Endpointer(rules.threshold, rules.min_silence_ms)
        sentence_ms = rules.sentence_silence_ms
        self._sentence_frames = None if sentence_ms is None else ms_to_frames(sentence_ms)
        self._prefix_frames = ms_to_frames(rules.prefix_ms)
        tail_ms = 1000 * self._config.tail_samples / SAMPLE_RATE
        pause_ms = min(rules.min_silence_ms, rules.min_silence_ms if sentence_ms is None else sentence_ms)
        # At least one frame: when the margin is complete, the text before the pause is requested.
        self._tail_frames = max(1, ms_to_frames(min(tail_ms, pause_ms)))
        self._probability = self._config.voice() if rules.detection is Detection.VOICE else None

    def _checkpoint(self) -> Checkpoint:
        unfinished = self._requests.first_without_final or self._utterance
        if unfinished is not None:
            return Checkpoint(unfinished.start_samples, unfinished.number - 1)
        return Checkpoint(self._clock - sum(len(frame.samples) for frame in self._prefix_audio), self._number)

    # -- frames ------------------------------------------------------------------------------------------------------

    def _probability_of(self, samples: Samples) -> float:
        if self._probability is None:
            return 1.0
        return self._probability(np.pad(samples, (0, FRAME_SAMPLES - len(samples))))

    def _signal(self, probability: float) -> Signal:
        if self._state is State.CLOSED:
            return Signal.SILENT
        if self._rules.detection is Detection.MANUAL:
            return Signal.VOICED if self._utterance else Signal.ONSET
        voice = self._endpointer.add(probability)
        return Signal.ENDPOINT if voice is VoiceActivity.PAUSED and self._sentence_is_over() else _SIGNALS[voice]

    def _sentence_is_over(self) -> bool:
        """Whether the pause is long enough behind a complete sentence."""
        enough = self._sentence_frames is not None and self._endpointer.quiet_frames >= self._sentence_frames
        return enough and self._opened().ends_with_sentence

    # -- actions of the table ----------------------------------------------------------------------------------------

    def _keep(self) -> None:
        self._prefix_audio.append(self._frame)
        self._trim(self._prefix_frames + self._endpointer.onset_frames)

    def _trim(self, frames: int) -> None:
        while len(self._prefix_audio) > frames:
            self._in_silence += len(self._prefix_audio.popleft().samples)

    def _open(self) -> None:
        self._prefix_audio.append(self._frame)
        self._trim(self._prefix_frames + max(1, self._endpointer.onset_frames))
        self._start(list(self._prefix_audio))
        self._prefix_audio.clear()

    def _start(self, frames: list[Frame]) -> None:
        """Open an utterance with the last frames received."""
        self._number += 1
        begin = self._clock - sum(len(frame.samples) for frame in frames)
        self._utterance = OpenUtterance(self._number, begin, self._rules, self._commit)
        self._out.append(UtteranceStarted(self._number, begin))
        self._fresh_samples = 0
        for frame in frames:
            self._add(frame)

    def _extend(self) -> None:
        utterance = self._opened()
        utterance.endpoint_samples = None
        self._add(self._frame)

    def _add(self, frame: Frame) -> None:
        utterance = self._opened()
        utterance.add(frame)
        self._fresh_samples += len(frame.samples)
        if self._fresh_samples >= self._config.partial_every_samples:
            self._fresh_samples = 0
            self._requests.request_partial(utterance)

    def _extend_pause(self) -> None:
        utterance = self._opened()
        utterance.add(self._frame)
        if self._endpointer.quiet_frames == self._tail_frames:
            utterance.endpoint_samples = utterance.samples
            self._fresh_samples = 0
            self._requests.request_partial(utterance)

    def _end(self) -> None:
        self._opened().add(self._frame)
        self._finish()

    def _finish(self) -> None:
        """End the open utterance: where its margin ends if the pause is longer than that, else here."""
        utterance = self._opened()
        rest = utterance.split_last(max(0, self._endpointer.quiet_frames - self._tail_frames))
        self._endpointer.reset()
        self._close_utterance(utterance)
        self._utterance = None
        self._prefix_audio.extend(rest)
        self._trim(self._prefix_frames if self._state is not State.CLOSED else 0)

    def _cut(self) -> None:
        utterance = self._opened()
        rest = utterance.split_at(utterance.quietest_frame())
        self._close_utterance(utterance)
        if self._next_rules is not None:
            self._apply(self._next_rules)
            self._endpointer.resume()
        self._start(rest)

    def _close_utterance(self, utterance: OpenUtterance) -> None:
        self._in_utterances += utterance.samples
        utterance.ending = self._ending
        self._out.append(UtteranceEnded(utterance.number, utterance.start_samples, utterance.end_samples, self._ending))
        self._requests.request_final(utterance)

    def _answer_flush(self) -> None:
        self._number += 1
        empty = OpenUtterance(self._number, self._clock, self._rules, self._commit)
        self._close_utterance(empty)

    def _discard(self) -> None:
        if self._utterance is not None:
            self._discarded += self._utterance.samples
            self._requests.drop(self._utterance)
            self._utterance = None
        self._discarded += sum(len(frame.samples) for frame in self._prefix_audio)
        self._prefix_audio.clear()
        self._endpointer.reset()

    def _ignore(self) -> None:
        self._discarded += len(self._frame.samples)

    def _catch_up(self) -> None:
        self._requests.request_partial(self._opened())

    def _opened(self) -> OpenUtterance:
        assert self._utterance is not None, "the table leads here only with an open utterance"
        return self._utterance
