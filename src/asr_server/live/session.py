"""The live session: events in, effects out. Decides everything, performs nothing; the transitions are in `table.py`.

Laws (see `session_test` and `laws_test`): how the bytes were cut does not matter; every sample is in one utterance, in
stated silence, in what was discarded on demand, or in the open buffer; committed text is a prefix of all that follows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from asr_server.core.audio import FRAME_SAMPLES, SAMPLE_RATE
from asr_server.live.agreement import CommitRules
from asr_server.live.endpoint import Endpointer, Voice, frames_of
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
    Voice.SILENT: Signal.SILENT,
    Voice.ONSET: Signal.ONSET,
    Voice.VOICED: Signal.VOICED,
    Voice.PAUSED: Signal.PAUSED,
    Voice.ENDPOINT: Signal.ENDPOINT,
}
_ENDINGS = {
    Signal.ENDPOINT: Ending.PAUSE,
    Signal.FULL: Ending.CUT,
    Signal.FLUSH: Ending.FLUSH,
    Signal.CLOSE: Ending.CLOSE,
}


@dataclass(frozen=True, slots=True, eq=False)
class LiveMachineConfig:
    """What holds for the whole session, and the rules it begins with.

    `voice`, `loudness`: make a fresh speech probability for `Detection.VOICE` and `Detection.LOUDNESS`. `resampler`:
    makes a fresh stream from an input rate in Hz to 16 kHz. `partial_every_samples`: new speech between two partials.
    `tail_samples`: audio behind the speech that belongs to the utterance. `finals_apart`: partials come from a lesser
    engine than finals, so none of them may serve as a final.
    """

    voice: Callable[[], Probability]
    loudness: Callable[[], Probability]
    resampler: Callable[[int], Resample]
    rules: TurnConfig = field(default_factory=TurnConfig)
    input_rate_hz: int = SAMPLE_RATE
    partial_every_samples: int = 7_200
    tail_samples: int = 2_400
    max_utterance_samples: int = 30 * SAMPLE_RATE
    commit: CommitRules = field(default_factory=CommitRules)
    finals_apart: bool = False


@dataclass(frozen=True, slots=True)
class AudioAccount:
    """Where all samples at 16 kHz are that came so far: `received` is the sum of the others."""

    received: int
    in_utterances: int
    in_silence: int
    discarded: int
    open: int


class LiveMachine:
    """Feed it events with `receive`, perform the effects in their order, bring answers of the engine back as events."""

    def __init__(self, config: LiveMachineConfig) -> None:
        self._config = config
        self._out: list[Action] = []
        self._desk = RequestScheduler(config.finals_apart, self._out)
        # Behind that the utterance may be cut, and a committed word cannot move to the next.
        self._commit = replace(config.commit, latest_samples=2 * config.max_utterance_samples // 3)
        self._framing = Framing(config.input_rate_hz, config.resampler)
        self._state = State.LISTENING
        self._utterance: OpenUtterance | None = None
        self._kept: deque[Frame] = deque()
        self._frame = Frame(np.zeros(0, np.float32), 0.0)
        self._ending = Ending.PAUSE
        self._fresh_samples = 0  # speech since the last partial was asked for
        self._number = self._clock = self._in_utterances = self._in_silence = self._discarded = 0
        self._coming_rules: TurnConfig | None = None
        self._use(config.rules)
        self._acts: dict[TurnAction, Callable[[], None]] = {
            TurnAction.NOTHING: lambda: None,
            TurnAction.KEEP: self._keep,
            TurnAction.OPEN: self._open,
            TurnAction.EXTEND: self._grow,
            TurnAction.EXTEND_PAUSE: self._rest,
            TurnAction.END: self._end,
            TurnAction.CUT: self._cut,
            TurnAction.END_FULL: self._finish,
            TurnAction.FINISH: self._finish,
            TurnAction.ANSWER: self._answer,
            TurnAction.SETTLE: self._settle,
            TurnAction.DISCARD: self._discard,
            TurnAction.IGNORE: self._ignore,
            TurnAction.CATCH_UP: self._catch_up,
        }

    # -- for the shell -----------------------------------------------------------------------------------------------

    def receive(self, event: Event) -> list[Action]:
        """The effects of one event, in the order in which to perform them. Raises nothing for any order of events."""
        match event:
            case Audio(pcm=pcm):
                self._hear_frames(self._framing.push(pcm))
            case Flush():
                self._hear_frames(self._framing.flush())
                self._step(Signal.FLUSH)
            case Reset():
                self._reset()
            case Configure():
                self._configure(event)
            case Interrupted():
                self._step(Signal.INTERRUPTED)
            case Close():
                self._hear_frames(self._framing.flush())
                self._step(Signal.CLOSE)
            case GetCheckpoint():
                self._out.append(self._settled())
            case TranscribeResult():
                self._desk.on_result(event)
            case TranscribeFailed():
                self._desk.fail(event)
        effects, self._out[:] = list(self._out), []
        return effects

    @property
    def state(self) -> State:
        """Where the session is."""
        return self._state

    @property
    def rules(self) -> TurnConfig:
        """Those of the next utterance."""
        return self._coming_rules or self._rules

    @property
    def account(self) -> AudioAccount:
        """Where all samples are."""
        kept = sum(len(frame.samples) for frame in self._kept)
        held = self._utterance.samples if self._utterance else 0
        buffered = self._framing.buffered_samples
        return AudioAccount(
            received=self._clock + buffered,
            in_utterances=self._in_utterances,
            in_silence=self._in_silence,
            discarded=self._discarded,
            open=kept + held + buffered,
        )

    @property
    def clock_samples(self) -> int:
        """Audio received so far that is in frames: the session's time."""
        return self._clock

    @property
    def backlog_samples(self) -> int:
        """Audio of ended utterances whose finals are still to come: stop feeding when this grows large."""
        return self._desk.backlog_samples

    @property
    def busy(self) -> bool:
        """Whether an answer of the engine is outstanding or a final is still to come."""
        return self._desk.busy

    @property
    def current_partial(self) -> Partial | None:
        """The open utterance as last understood; None when none is open or nothing was understood yet."""
        partial = self._utterance.partial() if self._utterance else None
        return partial if partial and partial.text else None

    # -- events ------------------------------------------------------------------------------------------------------

    def _hear_frames(self, frames: Iterable[Samples]) -> None:
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
        self._acts[step.act]()
        if self._utterance is None and self._coming_rules is not None:
            self._use(self._coming_rules)

    def _reset(self) -> None:
        thrown = self._utterance.number if self._utterance else None
        rest = self._framing.flush()
        self._framing.clear()
        self._step(Signal.RESET)
        lost = sum(len(samples) for samples in rest)
        self._clock += lost
        self._discarded += lost
        self._use(self._rules)
        self._out.append(ResetDone(thrown))

    def _configure(self, event: Configure) -> None:
        if event.input_rate_hz is not None:
            self._hear_frames(self._framing.flush())
            self._framing = Framing(event.input_rate_hz, self._config.resampler)
        self._coming_rules = event.rules
        if self._utterance is None:
            self._use(event.rules)
        elif Detection.MANUAL in {self._rules.detection, event.rules.detection}:
            # Who waits for the caller's flush would wait for ever, or not at all.
            self._use(event.rules)
            self._endpointer.resume()
        self._out.append(Configured(event.rules))

    def _use(self, rules: TurnConfig) -> None:
        self._rules, self._coming_rules = rules, None
        self._endpointer = Endpointer(rules.threshold, rules.min_silence_ms)
        sentence_ms = rules.sentence_silence_ms
        self._sentence_frames = None if sentence_ms is None else frames_of(sentence_ms)
        self._prefix_frames = frames_of(rules.prefix_ms)
        tail_ms = 1000 * self._config.tail_samples / SAMPLE_RATE
        pause_ms = min(rules.min_silence_ms, rules.min_silence_ms if sentence_ms is None else sentence_ms)
        # Not nothing: it is with the margin that the text of the pause is asked for.
        self._tail_frames = max(1, frames_of(min(tail_ms, pause_ms)))
        factories = {Detection.VOICE: self._config.voice, Detection.LOUDNESS: self._config.loudness}
        factory = factories.get(rules.detection)
        self._probability = factory() if factory else None

    def _settled(self) -> Checkpoint:
        unfinished = self._desk.unanswered or self._utterance
        if unfinished is not None:
            return Checkpoint(unfinished.start_samples, unfinished.number - 1)
        return Checkpoint(self._clock - sum(len(frame.samples) for frame in self._kept), self._number)

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
        return Signal.ENDPOINT if voice is Voice.PAUSED and self._sentence_is_over() else _SIGNALS[voice]

    def _sentence_is_over(self) -> bool:
        """Whether the pause is long enough for what was said before it."""
        enough = self._sentence_frames is not None and self._endpointer.quiet_frames >= self._sentence_frames
        return enough and self._opened().said_all

    # -- acts --------------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        self._kept.append(self._frame)
        self._trim(self._prefix_frames + self._endpointer.onset_frames)

    def _trim(self, frames: int) -> None:
        while len(self._kept) > frames:
            self._in_silence += len(self._kept.popleft().samples)

    def _open(self) -> None:
        self._kept.append(self._frame)
        self._trim(self._prefix_frames + max(1, self._endpointer.onset_frames))
        self._start(list(self._kept))
        self._kept.clear()

    def _start(self, frames: list[Frame]) -> None:
        """Open an utterance with these frames, the last that came."""
        self._number += 1
        begin = self._clock - sum(len(frame.samples) for frame in frames)
        self._utterance = OpenUtterance(self._number, begin, self._rules, self._commit)
        self._out.append(UtteranceStarted(self._number, begin))
        self._fresh_samples = 0
        for frame in frames:
            self._add(frame)

    def _grow(self) -> None:
        utterance = self._opened()
        utterance.settled_samples = None
        self._add(self._frame)

    def _add(self, frame: Frame) -> None:
        utterance = self._opened()
        utterance.add(frame)
        self._fresh_samples += len(frame.samples)
        if self._fresh_samples >= self._config.partial_every_samples:
            self._fresh_samples = 0
            self._desk.want(utterance)

    def _rest(self) -> None:
        utterance = self._opened()
        utterance.add(self._frame)
        if self._endpointer.quiet_frames == self._tail_frames:
            utterance.settled_samples = utterance.samples
            self._fresh_samples = 0
            self._desk.want(utterance)

    def _end(self) -> None:
        self._opened().add(self._frame)
        self._finish()

    def _finish(self) -> None:
        """End the open utterance behind its margin if the pause reaches that far, else here."""
        utterance = self._opened()
        rest = utterance.split_last(max(0, self._endpointer.quiet_frames - self._tail_frames))
        self._endpointer.reset()
        self._close_utterance(utterance)
        self._utterance = None
        self._kept.extend(rest)
        self._trim(self._prefix_frames if self._state is not State.CLOSED else 0)

    def _cut(self) -> None:
        utterance = self._opened()
        rest = utterance.split_at(utterance.quietest_frame())
        self._close_utterance(utterance)
        if self._coming_rules is not None:
            self._use(self._coming_rules)
            self._endpointer.resume()
        self._start(rest)

    def _close_utterance(self, utterance: OpenUtterance) -> None:
        self._in_utterances += utterance.samples
        utterance.ending = self._ending
        self._out.append(UtteranceEnded(utterance.number, utterance.start_samples, utterance.end_samples, self._ending))
        self._desk.end(utterance)

    def _answer(self) -> None:
        self._number += 1
        nothing = OpenUtterance(self._number, self._clock, self._rules, self._commit)
        self._close_utterance(nothing)

    def _settle(self) -> None:
        self._trim(0)

    def _discard(self) -> None:
        if self._utterance is not None:
            self._discarded += self._utterance.samples
            self._desk.drop(self._utterance)
            self._utterance = None
        self._discarded += sum(len(frame.samples) for frame in self._kept)
        self._kept.clear()
        self._endpointer.reset()

    def _ignore(self) -> None:
        self._discarded += len(self._frame.samples)

    def _catch_up(self) -> None:
        self._desk.want(self._opened())

    def _opened(self) -> OpenUtterance:
        assert self._utterance is not None, "the table leads here only with an open utterance"
        return self._utterance
