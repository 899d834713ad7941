"""The live session as a state machine: takes events, returns actions. The transitions are in `table.py`.

Invariants (tested in `session_invariants_test`): the result does not depend on how the bytes were cut; every sample is
in one utterance, in silence, discarded on request, or in the open buffer; committed text is a prefix of all later text.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

from asr_server.audio.segmentation import MIN_SPEECH_MS, Hysteresis
from asr_server.core.audio import FRAME_SAMPLES, SAMPLE_RATE, ms_to_frames
from asr_server.live.machine.agreement import CommitRules
from asr_server.live.machine.events import (
    NO_SAMPLES,
    Action,
    Audio,
    Checkpoint,
    Close,
    Configure,
    Configured,
    Ending,
    EndOfTurnEstimated,
    EndOfTurnLikely,
    EstimateEndOfTurn,
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
from asr_server.live.machine.framing import Block, Framing
from asr_server.live.machine.table import ENDINGS, TABLE, Signal, State, TurnAction
from asr_server.live.machine.utterance import (
    AudioAccount,
    Frame,
    LiveMachineConfig,
    OpenUtterance,
    Part,
    RequestScheduler,
)

# After this much quiet, estimate from at most this much audio whether the speaker has finished. A probability
# of at least `_LIKELY` means that this is likelier than not.
_ASK_FRAMES = ms_to_frames(200)
_HEARD_SAMPLES = 8 * SAMPLE_RATE
_LIKELY = 0.5
_SURE_FRAMES = ms_to_frames(384)  # the longest wait for the margin if the end is sure: the client waits too

# The end of a word scores as quiet, so the next utterance does not get this much of the pause again.
_WORD_END_FRAMES = ms_to_frames(150)

_LONGEST_DOUBT_MS = 500  # after this much quiet a click is forgotten, however long a pause may be

_SIGNALS = {Flush: Signal.FLUSH, Interrupted: Signal.INTERRUPTED, Close: Signal.CLOSE}


class Endpointer(Hysteresis):
    """Finds the beginning and the end of speech. Call `reset` after an endpoint or another end of an utterance."""

    def __init__(self, threshold: float, min_silence_ms: float) -> None:
        super().__init__(threshold)
        self._min_silence = max(1, ms_to_frames(min_silence_ms))
        self._min_speech = ms_to_frames(MIN_SPEECH_MS)
        self._longest_doubt = min(self._min_silence, ms_to_frames(_LONGEST_DOUBT_MS))
        self._certain = False  # the sound that began is speech, not a click

    def reset(self, frames: int = 0) -> None:
        """Begin in silence, or after `frames` frames of speech that continues."""
        self._certain = frames > 0
        super().reset(frames)

    def signal(self, probability: float) -> Signal:
        """Add the next frame and return its meaning."""
        self.add(probability)
        if not self._certain:
            return self._doubt()
        if not self.quiet_frames:
            return Signal.VOICED
        return Signal.PAUSED if self.quiet_frames < self._min_silence else Signal.ENDPOINT

    def _doubt(self) -> Signal:
        if self.frames >= self._min_speech and not self.quiet_frames:
            self._certain = True
            return Signal.ONSET
        if self.quiet_frames >= self._longest_doubt:
            self.reset()
        return Signal.SILENT


class LiveMachine:
    """Decides what a live session does.

    For each event, the caller asks for the `block` that the event completes and finds the speech probability of each
    frame in it. It passes the event and the frames to `receive`, and performs the returned actions in order.
    """

    def __init__(self, config: LiveMachineConfig) -> None:
        self._config = config
        self._out: list[Action] = []
        self._requests = RequestScheduler(config, self._out)
        # The utterance may be cut after this place, and a committed word cannot move to the next utterance.
        self._commit = CommitRules(latest_samples=2 * config.max_utterance_samples // 3)
        self._framing = Framing(config.input_rate_hz)
        self.state = State.LISTENING
        self._utterance: OpenUtterance | None = None
        self._part: Part | None = None  # of the open utterance; None in a long pause
        self._prefix_audio: deque[Frame] = deque()
        self._frame = Frame(NO_SAMPLES, 0.0)
        self._ending = Ending.PAUSE
        self._fresh_samples = 0  # speech since the last partial was requested
        self._margin_frames = -(-config.margin_samples // FRAME_SAMPLES)
        self._pause = NO_SAMPLES  # the end of the last utterance, which the next one gets again as its margin
        self._end_of_turn: float | None = None  # as estimated in the current pause
        self._asked_samples: int | None = None  # the position of the estimate requested in the current pause
        self.clock_samples = self._pause_start = self._number = 0
        self._in_utterances = self._in_silence = self._discarded = 0
        self._next_rules: TurnConfig | None = None
        self._apply(config.rules)
        self._actions: dict[TurnAction, Callable[[], None]] = {
            TurnAction.NOTHING: lambda: None,
            TurnAction.KEEP: self._keep,
            TurnAction.OPEN: self._open,
            TurnAction.EXTEND: self._extend,
            TurnAction.EXTEND_PAUSE: self._extend_pause,
            TurnAction.END_PART: self._end_part,
            TurnAction.END: self._end,
            TurnAction.CUT: self._cut,
            TurnAction.FINISH: self._finish,
            TurnAction.ANSWER_FLUSH: self._answer_flush,
            TurnAction.COUNT_SILENCE: lambda: self._trim(0),
            TurnAction.DISCARD: self._discard,
            TurnAction.CATCH_UP: lambda: self._requests.request_partial(self._current_part()),
        }

    # -- for the caller ----------------------------------------------------------------------------------------------

    def block(self, event: Event) -> Block | None:
        """Return the audio of the frames that the event may complete, or None.

        A frame has 512 samples; the last one of a stream may have fewer. Pass these frames to `receive` before the
        next call. Results of the engine may be received in between.
        """
        if isinstance(event, Audio):
            return self._framing.push(event.pcm)
        ends = isinstance(event, Flush | Close) or (isinstance(event, Configure) and event.input_rate_hz is not None)
        return self._framing.flush() if ends else None

    def receive(self, event: Event, frames: Sequence[Frame] = ()) -> list[Action]:
        """Process one event and the frames that it completes. Events may come in any order."""
        for frame in frames:
            self._process_frame(frame)
        match event:
            case Flush() | Interrupted() | Close():
                self._step(_SIGNALS[type(event)])
            case Reset():
                self._reset()
            case Configure():
                self._configure(event)
            case GetCheckpoint():
                self._out.append(self._checkpoint())
            case EndOfTurnEstimated(position_samples=position, probability=float(probability)):
                if position == self._asked_samples:
                    self._note_end_of_turn(probability)
            case TranscribeResult():
                self._requests.on_result(event)
            case TranscribeFailed():
                self._requests.on_failure(event)
        actions, self._out[:] = list(self._out), []
        return actions

    @property
    def input_rate_hz(self) -> int:
        return self._framing.rate_hz

    @property
    def account(self) -> AudioAccount:
        """The account of all samples."""
        buffered = self._framing.buffered_samples
        return AudioAccount(
            received=self.clock_samples + buffered,
            in_utterances=self._in_utterances,
            in_silence=self._in_silence,
            discarded=self._discarded,
            open=self._open_samples + buffered,
        )

    @property
    def backlog_samples(self) -> int:
        """Audio of ended utterances without a final. The caller stops giving audio when this grows large."""
        return self._requests.backlog_samples

    @property
    def busy(self) -> bool:
        return self._requests.busy

    @property
    def current_partial(self) -> Partial | None:
        """The last partial of the open utterance; None when none is open or it has no text yet."""
        if (utterance := self._utterance) is None:
            return None
        ended = self._requests.first_without_final
        part = ended if ended and ended.utterance is utterance else self._part
        partial = part.partial() if part else utterance.partial()
        return partial if partial.text else None

    @property
    def shown_samples(self) -> int:
        """The length of the open utterance, pauses included; 0 if `current_partial` is None."""
        if (utterance := self._utterance) is None:
            return 0
        ended = self._requests.first_without_final
        part = ended if ended and ended.utterance is utterance else self._part
        has_text = (part is not None and part.agreement.text) or any(each.text for each in utterance.parts)
        return self.clock_samples - utterance.start_samples if has_text else 0

    # -- events ------------------------------------------------------------------------------------------------------

    def _process_frame(self, frame: Frame) -> None:
        self._frame = frame
        self._count(frame)
        self._step(self._signal(frame.probability))
        if self._is_full():
            self._step(Signal.FULL)
        # A frame that a part has taken is a view of all its audio, which may be minutes. It would keep that memory
        # until the next frame or, after the client has left, until the session cannot be resumed any more.
        self._frame = Frame(NO_SAMPLES, 0.0)

    def _count(self, frame: Frame) -> None:
        self.clock_samples += len(frame.samples)
        self._config.on_frame(frame)

    def _is_full(self) -> bool:
        """Return True if the part, or in a long pause the utterance, has the maximum length."""
        begin = self._part or self._utterance
        return begin is not None and self.clock_samples - begin.start_samples >= self._config.max_utterance_samples

    def _step(self, signal: Signal) -> None:
        action, self.state = TABLE[self.state, signal]
        self._ending = ENDINGS.get(signal, Ending.PAUSE)
        self._actions[action]()
        if self._utterance is None and self._next_rules is not None:
            self._apply(self._next_rules)

    def _reset(self) -> None:
        discarded = self._utterance.number if self._utterance else None
        rest = self._framing.flush()
        self._framing = Framing(self._framing.rate_hz)  # which has no odd byte
        self._step(Signal.RESET)
        if rest is not None:
            frame = Frame(rest.samples(), 0.0)
            self._count(frame)
            self._discarded += len(frame.samples)
        self._out.append(ResetDone(discarded))

    def _configure(self, event: Configure) -> None:
        if event.input_rate_hz is not None:
            self._framing = Framing(event.input_rate_hz)
        self._next_rules = event.rules
        if self._utterance is None:
            self._apply(event.rules)
        elif self._rules.manual or event.rules.manual:
            # At once: otherwise the open utterance would wait forever for the caller's flush, or end without it.
            self._apply(event.rules)
            if self._part is not None:
                self._endpointer.reset(frames=1)
        self._out.append(Configured(event.rules, event.asked_language))

    def _apply(self, rules: TurnConfig) -> None:
        self._rules, self._next_rules = rules, None
        manual, sentence_ms = rules.manual, rules.sentence_silence_ms
        max_pause_ms = 1000 * self._config.max_pause_samples / SAMPLE_RATE
        self._longest_ms = max(rules.min_silence_ms, rules.end_of_turn.longest_ms if rules.end_of_turn else 0)
        pause_ms = max_pause_ms if manual else min(max_pause_ms, self._longest_ms)
        self._endpointer = Endpointer(rules.threshold, pause_ms)
        self._end_frames = math.inf if manual else ms_to_frames(rules.min_silence_ms)
        self._sentence_frames = math.inf if sentence_ms is None else ms_to_frames(sentence_ms)
        self._prefix_frames = max(self._margin_frames, ms_to_frames(rules.prefix_ms))
        # At least one frame, because the text before the pause is requested once the margin is complete.
        self._tail_frames = max(1, min(self._margin_frames, ms_to_frames(min(pause_ms, sentence_ms or pause_ms))))

    def _checkpoint(self) -> Checkpoint:
        waiting = self._requests.first_without_final
        unfinished = waiting.utterance if waiting else self._utterance
        if unfinished is not None:
            return Checkpoint(unfinished.start_samples, unfinished.number - 1)
        return Checkpoint(self.clock_samples - sum(len(frame.samples) for frame in self._prefix_audio), self._number)

    # -- frames ------------------------------------------------------------------------------------------------------

    def _signal(self, probability: float) -> Signal:
        signal = self._endpointer.signal(probability)
        if self.state is State.LISTENING or signal in (Signal.VOICED, Signal.ONSET):
            return signal
        if self._pause_is_over():
            return Signal.ENDPOINT
        return Signal.LONG_PAUSE if signal is Signal.ENDPOINT else signal

    def _pause_is_over(self) -> bool:
        """Return True if the pause is long enough. A shorter pause is enough after a complete sentence."""
        frames = self._endpointer.quiet_frames
        if self._part is not None:
            is_sentence = self._part.ends_with_sentence
        else:
            frames = (self.clock_samples - self._pause_start) // FRAME_SAMPLES
            is_sentence = self._requests.first_without_final is None and self._opened().ends_with_sentence
        return frames >= self._wait_frames or (is_sentence and frames >= self._sentence_frames)

    @property
    def _wait_frames(self) -> float:
        """Return how many frames the current pause must last."""
        rules, probability = self._rules.end_of_turn, self._end_of_turn
        if rules is None or probability is None:
            return self._end_frames
        if probability >= rules.sure:
            return min(self._tail_frames, _SURE_FRAMES)
        return self._end_frames if probability >= _LIKELY else ms_to_frames(self._longest_ms)

    def _note_end_of_turn(self, probability: float) -> None:
        self._end_of_turn = probability
        if probability >= _LIKELY:
            self._out.append(EndOfTurnLikely(self._opened().number, probability, self.clock_samples))

    def _forget_pause(self) -> None:
        """Ignore estimates that are still to come: speech continues, or the utterance is over."""
        self._end_of_turn = self._asked_samples = None

    # -- actions of the table ----------------------------------------------------------------------------------------

    def _keep(self) -> None:
        self._prefix_audio.append(self._frame)
        self._trim(self._kept_frames + self._endpointer.frames)

    @property
    def _kept_frames(self) -> float:
        """The frames of audio before an onset that belong to the utterance or part that begins there."""
        if self._utterance is not None:
            return self._margin_frames
        return math.inf if self._holds_all else self._prefix_frames

    @property
    def _holds_all(self) -> bool:
        """True at the beginning of a session whose first utterance takes all audio before it."""
        return self._number == 0 and self.clock_samples <= self._config.first_prefix_samples

    def _trim(self, frames: float) -> None:
        while len(self._prefix_audio) > frames:
            self._in_silence += len(self._prefix_audio.popleft().samples)
            self._pause = NO_SAMPLES

    def _open(self) -> None:
        self._prefix_audio.append(self._frame)
        wanted = self._kept_frames + max(1, self._endpointer.frames)
        self._trim(wanted)
        missing_samples = int(min(wanted - len(self._prefix_audio), self._prefix_frames)) * FRAME_SAMPLES
        self._start(list(self._prefix_audio), self._pause[max(0, len(self._pause) - missing_samples) :])
        self._prefix_audio.clear()
        self._fresh_samples = self._endpointer.frames * FRAME_SAMPLES

    def _start(self, frames: list[Frame], lead: Samples = NO_SAMPLES) -> None:
        """Begin a part with the last frames received; with it an utterance, if none is open."""
        begin = self.clock_samples - sum(len(frame.samples) for frame in frames)
        if self._utterance is None:
            self._number += 1
            self._utterance = OpenUtterance(self._number, begin, self._rules)
            self._out.append(UtteranceStarted(self._number, begin))
        self._part = Part(self._utterance, begin, self._commit, lead)
        self._pause = NO_SAMPLES
        self._fresh_samples = 0
        self._forget_pause()
        for frame in frames:
            self._part.add(frame)

    def _extend(self) -> None:
        part = self._current_part()
        part.endpoint_samples = None
        self._forget_pause()
        part.add(self._frame)
        self._fresh_samples += len(self._frame.samples)
        if self._fresh_samples >= self._config.partial_every_samples:
            self._fresh_samples = 0
            self._requests.request_partial(part)

    def _extend_pause(self) -> None:
        part = self._current_part()
        part.add(self._frame)
        if self._endpointer.quiet_frames == self._tail_frames:
            part.endpoint_samples = part.samples
            self._fresh_samples = 0
            self._requests.request_partial(part)
        if self._rules.end_of_turn is not None and self._endpointer.quiet_frames == _ASK_FRAMES:
            self._asked_samples = self.clock_samples
            self._out.append(EstimateEndOfTurn(self.clock_samples, part.last_audio(_HEARD_SAMPLES)))

    def _end_part(self) -> None:
        part, quiet_frames = self._current_part(), self._endpointer.quiet_frames
        self._pause_start = self.clock_samples - quiet_frames * FRAME_SAMPLES
        part.add(self._frame)
        rest = part.split_last(quiet_frames - self._margin_frames)
        self._endpointer.reset()
        self._close_part(part)
        self._requests.request_final(part)
        self._prefix_audio.extend(rest)
        self._trim(self._margin_frames)

    def _end(self) -> None:
        if self._part is not None:
            self._part.add(self._frame)
        else:
            self._prefix_audio.append(self._frame)
        self._finish()

    def _finish(self) -> None:
        """End the open utterance at the end of its margin if the pause is longer, otherwise here."""
        if self._part is not None:
            quiet_frames = self._endpointer.quiet_frames
            self._prefix_audio.extend(self._part.split_last(max(0, quiet_frames - self._tail_frames)))
            heard_again = max(0, min(quiet_frames, self._tail_frames) - _WORD_END_FRAMES)
            self._pause = self._part.last_audio(heard_again * FRAME_SAMPLES).copy()
        self._close_utterance()
        self._endpointer.reset()
        self._trim(self._prefix_frames if self.state is not State.CLOSED else 0)

    def _cut(self) -> None:
        part = self._current_part()
        rest = part.split_at(part.quietest_frame())
        self._close_utterance()
        if self._next_rules is not None:
            self._apply(self._next_rules)
            self._endpointer.reset(frames=1)
        self._start(rest)

    def _close_utterance(self) -> None:
        utterance = self._opened()
        last = self._part or Part(utterance, utterance.end_samples, self._commit)
        last.is_last = True
        self._close_part(last)
        self._utterance = None
        self._in_utterances += utterance.samples
        utterance.ending = self._ending
        utterance.end_of_turn = self._end_of_turn
        self._forget_pause()
        self._out.append(UtteranceEnded(utterance.number, utterance.start_samples, utterance.end_samples, self._ending))
        self._requests.request_final(last)

    def _close_part(self, part: Part) -> None:
        self._part = None
        part.utterance.samples += part.samples
        part.utterance.end_samples = max(part.utterance.end_samples, part.end_samples)

    def _answer_flush(self) -> None:
        if self._prefix_audio and self._holds_all:  # it may be speech that is not detected yet
            self._start(list(self._prefix_audio))
            self._prefix_audio.clear()
            self._finish()
            return
        self._number += 1
        self._utterance = OpenUtterance(self._number, self.clock_samples, self._rules, end_samples=self.clock_samples)
        self._close_utterance()

    def _discard(self) -> None:
        self._discarded += self._open_samples
        self._forget_pause()
        if self._utterance is not None:
            self._requests.drop(self._utterance)
            self._utterance = self._part = None
        self._prefix_audio.clear()
        self._pause = NO_SAMPLES
        self._endpointer.reset()

    @property
    def _open_samples(self) -> int:
        """Samples of the open utterance, without long pauses, and of the possible prefix of the next part."""
        held = self._utterance, self._part
        return sum(each.samples for each in held if each) + sum(len(frame.samples) for frame in self._prefix_audio)

    def _opened(self) -> OpenUtterance:
        assert self._utterance is not None, "the table leads here only with an open utterance"
        return self._utterance

    def _current_part(self) -> Part:
        assert self._part is not None, "the table leads here only with an open part"
        return self._part
