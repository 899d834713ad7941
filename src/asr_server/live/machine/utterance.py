"""An utterance of a live session: its parts with their frames and hypotheses, and the requests to the engine for it.

Requests are made one at a time: finals first and in order, then the open utterance, always with its newest audio. A
result is stale, and ignored, unless it has the ticket of the current request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np

from asr_server.audio.segmentation import cut_cost, off_threshold, quietest_frame
from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.transcript import Token
from asr_server.live.machine.agreement import Agreement, CommitRules, following
from asr_server.live.machine.events import (
    NO_SAMPLES,
    Action,
    CancelRequest,
    Ending,
    Final,
    FinalPart,
    Partial,
    ResultKind,
    Samples,
    SessionError,
    Transcribe,
    TranscribeFailed,
    TranscribeResult,
    TurnConfig,
)
from asr_server.text import scripts
from asr_server.text.words import ends_sentence

_SAMPLE_BYTES = 4


@dataclass(frozen=True, slots=True, eq=False)
class LiveMachineConfig:
    """The configuration of the whole session, and the turn configuration it begins with."""

    rules: TurnConfig = field(default_factory=TurnConfig)
    input_rate_hz: int = SAMPLE_RATE
    # If the first utterance begins within this, it holds all audio before it. For a session that begins in the middle
    # of speech, which voice detection without history detects late.
    first_prefix_samples: int = 0
    partial_every_samples: int = 7_200  # of new speech between two partials
    # The length at which a part without a long pause is cut. An utterance that is longer in total ends in its next long
    # pause.
    max_utterance_samples: int = 30 * SAMPLE_RATE
    max_pause_samples: int = 36_800  # an utterance with a longer pause is transcribed in parts
    margin_samples: int = 4_800  # before and after the speech of an utterance or part, as far as the pause goes
    # Partials of the default model come from a less accurate engine than finals. They never serve as a final or commit
    # a word. After `confirm_every_samples` without a pause, the next request goes to the engine of the finals.
    separate_final_engine: bool = False
    confirm_every_samples: int = 5 * SAMPLE_RATE
    on_frame: Callable[[Frame], None] = lambda frame: None  # gets all audio that the clock counts, in order


@dataclass(frozen=True, slots=True)
class AudioAccount:
    """The use of the samples at 16 kHz received so far."""

    received: int  # the sum of the others
    in_utterances: int
    in_silence: int
    discarded: int
    open: int


@dataclass(slots=True, eq=False)
class Frame:
    """At most 512 samples, and their speech probability."""

    samples: Samples
    probability: float


@dataclass(slots=True, eq=False)
class OpenUtterance:
    """The state that the parts of an utterance share."""

    number: int
    start_samples: int
    rules: TurnConfig  # when it began
    samples: int = 0  # of the parts that ended
    end_samples: int = 0  # of the parts that ended
    ending: Ending = Ending.PAUSE
    parts: list[FinalPart] = field(default_factory=list)  # the parts that have their final
    tokens: list[Token] = field(default_factory=list)  # of the parts that have their final
    language: str = ""  # of the first part with a final and text; never changes, since that text does not
    error: SessionError | None = None
    failure_reported: bool = False
    end_of_turn: float | None = None  # as estimated in its last pause

    @property
    def text(self) -> str:
        return self.text_with("")

    @property
    def ends_with_sentence(self) -> bool:
        return ends_sentence(self.text)

    def partial(self) -> Partial:
        """Return the utterance up to its last part with a final, all of whose text is committed."""
        end_samples = self.parts[-1].end_samples if self.parts else self.start_samples
        return Partial(self.number, self.text, "", self.language, self.start_samples, end_samples)

    def text_with(self, text: str) -> str:
        return scripts.join([*(part.text for part in self.parts), text])


class Part:
    """A part of an utterance, which is transcribed on its own: between two long pauses, or the whole utterance."""

    def __init__(
        self, utterance: OpenUtterance, start_samples: int, commit: CommitRules, lead: Samples = NO_SAMPLES
    ) -> None:
        """`lead`: the audio before the start, which belongs to the previous utterance and is transcribed again."""
        self.utterance = utterance
        self.start_samples = start_samples
        self.is_last = False  # known once the utterance has ended
        self.language = ""
        self.endpoint_samples: int | None = None  # its length if the current pause ends it
        # Of the last hypothesis. A part without audio needs none, so it begins as if it had a final one.
        self.result_samples = 0
        self.result_kind = ResultKind.FINAL
        self.result_truncated = False
        self.confirmed_samples = 0  # of the last hypothesis that may commit words
        self.attempts = 0
        self.agreement = Agreement(commit)
        self._tokens: tuple[Token, ...] = ()  # one for each id of the last hypothesis
        self._frames: list[Frame] = []
        self.lead_samples = len(lead)
        self._audio = lead.copy()  # later also the frames, and room for more
        self._bytes = self._audio.data.cast("B")  # the same memory
        self.samples = 0

    # -- audio -------------------------------------------------------------------------------------------------------

    @property
    def end_samples(self) -> int:
        return self.start_samples + self.samples

    def add(self, frame: Frame) -> None:
        """Add the next frame. Its samples move to the end of the part's audio, so no request has to join frames."""
        begin = self.lead_samples + self.samples
        end = begin + len(frame.samples)
        if end > len(self._audio):
            before, self._audio = self._bytes, np.empty(SAMPLE_RATE + 3 * end // 2, np.float32)
            self._bytes = self._audio.data.cast("B")
            self._bytes[: _SAMPLE_BYTES * begin] = before[: _SAMPLE_BYTES * begin]
            at = self.lead_samples
            for each in self._frames:  # or they would keep the old memory
                each.samples = self._audio[at : at + len(each.samples)]
                at += len(each.samples)
        # By bytes: numpy would release the interpreter for each frame, and wait for other threads.
        self._bytes[_SAMPLE_BYTES * begin : _SAMPLE_BYTES * end] = frame.samples.data.cast("B")
        frame.samples = self._audio[begin:end]  # or the part would hold its audio twice
        self._frames.append(frame)
        self.samples += len(frame.samples)

    @property
    def peak_probability(self) -> float:
        return max((frame.probability for frame in self._frames), default=0.0)

    def speech(self, samples: int) -> list[tuple[int, int]]:
        """Return the ranges of the frames within the first `samples` that are likely speech."""
        ends = accumulate((len(frame.samples) for frame in self._frames), initial=0)
        least = off_threshold(self.utterance.rules.threshold)
        places = zip(pairwise(ends), self._frames, strict=True)
        return [(begin, end) for (begin, end), frame in places if end <= samples and frame.probability >= least]

    @property
    def useful_samples(self) -> int:
        """The samples from which a hypothesis should be made now: the pause after the speech adds nothing."""
        return self.samples if self.endpoint_samples is None else self.endpoint_samples

    def audio(self, samples: int) -> Samples:
        """Return the lead and the first `samples`, which must end between two frames. They never change."""
        return self._audio[: self.lead_samples + samples]

    def last_audio(self, samples: int) -> Samples:
        """Return the last `samples`, or all if there are fewer. They never change."""
        end = self.lead_samples + self.samples
        return self._audio[max(0, end - samples) : end]

    def split_at(self, frames: int) -> list[Frame]:
        """Keep the first frames, return the others. No frame may be added afterwards."""
        rest, self._frames = self._frames[frames:], self._frames[:frames]
        self.samples -= sum(len(frame.samples) for frame in rest)
        return [Frame(frame.samples.copy(), frame.probability) for frame in rest]  # not views of the part

    def split_last(self, frames: int) -> list[Frame]:
        return self.split_at(len(self._frames) - frames)

    def quietest_frame(self) -> int:
        """Return where to cut: the frame in the last third whose surrounding 160 ms are quietest, never the first."""
        costs = [cut_cost(float(np.mean(np.square(frame.samples))), frame.probability) for frame in self._frames]
        return quietest_frame(costs, max(1, 2 * len(costs) // 3), len(costs))

    # -- text --------------------------------------------------------------------------------------------------------

    def on_result(self, result: TranscribeResult, samples: int, kind: ResultKind, *, may_commit: bool = True) -> None:
        """Take a hypothesis made from the first `samples`."""
        if not self.agreement.committed:  # then the language of its committed words stays
            self.language = result.language or self.language
        speech_samples = sum(end - begin for begin, end in self.speech(samples))
        self.agreement.on_result(result, samples, speech_samples, may_commit=may_commit)
        if may_commit:
            self.confirmed_samples = samples
        self.result_samples, self.result_kind, self.result_truncated = samples, kind, result.truncated
        self._tokens = _tokens(result)

    @property
    def ends_with_sentence(self) -> bool:
        """True if the text of the audio before the current pause is known and ends with a sentence."""
        return self.result_samples == self.endpoint_samples and ends_sentence(self.agreement.text)

    def partial(self) -> Partial:
        """Return the utterance with the text of the last hypothesis."""
        known = self.agreement
        committed = self.utterance.text_with(known.committed)
        return Partial(
            utterance=self.utterance.number,
            committed=committed,
            tentative=self.utterance.text_with(known.text)[len(committed) :],
            language=self.utterance.language or self.language,
            start_samples=self.utterance.start_samples,
            end_samples=self.start_samples + self.result_samples,
        )

    def final(self, result: TranscribeResult | None) -> Partial | Final:
        """Return the final, made from the result on all of the audio or, without one, from the last hypothesis.

        After a part that is not the last, return a partial, all of whose text is committed. A hypothesis made before a
        cut may reach into the next utterance; then only its committed words are used.
        """
        known = self.agreement
        if result is not None:
            text, tokens = following(known.committed, result), _tokens(result)
            if not known.committed:
                self.language = result.language
        elif self.result_samples <= self.samples:
            text, tokens = known.text, self._tokens
        else:
            text, tokens = known.committed, self._tokens[: len(known.committed_ids)]
        whole = self.utterance
        if self.samples:
            whole.parts.append(FinalPart(self.start_samples, self.end_samples, text))
        whole.tokens += [token for token in tokens if token.written]
        if not whole.language and text:
            whole.language = self.language
        if not self.is_last:
            return whole.partial()
        return Final(
            whole.number,
            whole.text,
            whole.language,
            whole.start_samples,
            whole.end_samples,
            whole.ending,
            tuple(whole.parts),
            tuple(whole.tokens),
            whole.error,
            whole.end_of_turn,
        )


def _tokens(result: TranscribeResult) -> tuple[Token, ...]:
    return tuple(map(Token, result.pieces, result.logprobs))


# An utterance without its final has no text, so a final that failed is requested once more.
_FINAL_ATTEMPTS = 2


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    ticket: int
    part: Part
    samples: int  # of the part, from its start
    kind: ResultKind


class RequestScheduler:
    """Appends actions to `out`, which the session returns after each event."""

    def __init__(self, config: LiveMachineConfig, out: list[Action]) -> None:
        self._config = config
        self._out = out
        self._tickets = 0
        self._request: _Request | None = None
        self._ended: deque[Part] = deque()
        self._open: Part | None = None  # the open part, while it waits for its turn to request a partial

    @property
    def backlog_samples(self) -> int:
        return sum(part.samples for part in self._ended)

    @property
    def first_without_final(self) -> Part | None:
        return self._ended[0] if self._ended else None

    @property
    def busy(self) -> bool:
        return self._request is not None or bool(self._ended)

    # -- from the session --------------------------------------------------------------------------------------------

    def request_partial(self, part: Part) -> None:
        """Request a hypothesis on the open part, with the audio that it has when its turn comes."""
        self._open = part
        self._submit_next()

    def request_final(self, part: Part) -> None:
        """Request the final of a part that has all its audio. Deliver it at once if a result on all of it is known."""
        self._open = None
        request = self._request
        if request and request.part is part and not self._serves(request.samples, request.kind, part):
            self._cancel()
        self._ended.append(part)
        self._deliver_known()
        self._submit_next()

    def drop(self, utterance: OpenUtterance) -> None:
        """Forget the open utterance, which is discarded, and cancel its request."""
        self._open = None
        self._ended = deque(part for part in self._ended if part.utterance is not utterance)
        if self._request and self._request.part.utterance is utterance:
            self._cancel()
        self._submit_next()

    # -- from the engine ---------------------------------------------------------------------------------------------

    def on_result(self, result: TranscribeResult) -> None:
        """The engine's result for a request."""
        request = self._take(result.ticket)
        if request is None:
            return
        part = request.part
        if self._is_final(request):
            if not result.truncated:
                self._deliver(result)
                self._deliver_known()
        else:
            shown = part.partial()
            may_commit = request.kind is ResultKind.FINAL or not self._is_separate(part)
            part.on_result(result, request.samples, request.kind, may_commit=may_commit)
            now = part.partial()
            if (now.committed, now.tentative) != (shown.committed, shown.tentative):
                self._out.append(now)
        self._submit_next()

    def on_failure(self, failed: TranscribeFailed) -> None:
        """Note a failure. Partials follow anyway; a final is requested once more, then made from what is known."""
        request = self._take(failed.ticket)
        if request is None:
            return
        part, utterance = request.part, request.part.utterance
        error = SessionError(failed.code, failed.message, utterance.number)
        if self._is_final(request):
            part.attempts += 1
            if part.attempts >= _FINAL_ATTEMPTS:
                utterance.error = utterance.error or error
                self._out.append(error)
                self._deliver(None)
                self._deliver_known()
        elif not utterance.failure_reported:
            utterance.failure_reported = True
            self._out.append(error)
        self._submit_next()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _is_final(self, request: _Request) -> bool:
        return bool(self._ended) and self._ended[0] is request.part

    def _serves(self, samples: int, kind: ResultKind, part: Part) -> bool:
        """Return True if a result of this kind on this many samples is as good as the part's final."""
        return samples == part.samples and (kind is ResultKind.FINAL or not self._is_separate(part))

    def _is_separate(self, part: Part) -> bool:
        return self._config.separate_final_engine and not part.utterance.rules.model

    def _kind(self, part: Part) -> ResultKind:
        """Return the kind of the next request for an open part: final in a pause, where it may be the last one."""
        unconfirmed = part.useful_samples - part.confirmed_samples
        if part.endpoint_samples is not None:
            return ResultKind.FINAL
        confirm = self._is_separate(part) and unconfirmed >= self._config.confirm_every_samples
        return ResultKind.FINAL if confirm else ResultKind.PARTIAL

    def _take(self, ticket: int) -> _Request | None:
        """Remove and return the current request if it has this ticket."""
        request = self._request
        if request is None or request.ticket != ticket:
            return None
        self._request = None
        return request

    def _cancel(self) -> None:
        if self._request:
            self._out.append(CancelRequest(self._request.ticket))
            self._request = None

    def _deliver(self, result: TranscribeResult | None) -> None:
        """Deliver the final of the first ended part, made from this result or from the last hypothesis."""
        message = self._ended.popleft().final(result)
        if message.text or isinstance(message, Final):
            self._out.append(message)

    def _deliver_known(self) -> None:
        """Deliver the finals that need no request: of parts without audio, or with a hypothesis on all of it."""
        while self._ended and self._is_known(self._ended[0]):
            self._deliver(None)

    def _is_known(self, ended: Part) -> bool:
        return not ended.result_truncated and self._serves(ended.result_samples, ended.result_kind, ended)

    def _submit_next(self) -> None:
        if self._request is not None:
            return
        if self._ended:
            self._submit(self._ended[0], self._ended[0].samples, ResultKind.FINAL)
        elif self._open is not None:
            part, self._open = self._open, None
            kind = self._kind(part)
            if (part.useful_samples, kind) != (part.result_samples, part.result_kind):
                self._submit(part, part.useful_samples, kind)

    def _submit(self, part: Part, samples: int, kind: ResultKind) -> None:
        self._tickets += 1
        speech = part.speech(samples)
        self._request = _Request(self._tickets, part, samples, kind)
        self._out.append(
            Transcribe(
                ticket=self._tickets,
                kind=kind,
                utterance=part.utterance.number,
                start_samples=part.start_samples - part.lead_samples,
                audio=part.audio(samples),
                language=part.utterance.rules.language,
                context=part.utterance.rules.context,
                prefix=part.agreement.committed_ids,
                draft=part.agreement.ids,
                peak_probability=part.peak_probability,
                speech=(part.start_samples + speech[0][0], part.start_samples + speech[-1][1]) if speech else None,
                model=part.utterance.rules.model,
                committed=part.agreement.committed,
                text=part.agreement.text,
                written_language=part.language,
            )
        )
