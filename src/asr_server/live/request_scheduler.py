"""What the session asks of the engine, one request at a time, and what comes of the answers. Does not see frames.

Finals go first and in order; then the open utterance, always with its newest audio. An answer whose ticket is not the
one under way is stale and ignored.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from asr_server.live.events import (
    Action,
    CancelRequest,
    ResultKind,
    SessionError,
    Transcribe,
    TranscribeFailed,
    TranscribeResult,
)
from asr_server.live.utterance import OpenUtterance

# A final that failed is tried once more: the words are worth it.
_FINAL_ATTEMPTS = 2


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    ticket: int
    utterance: OpenUtterance
    samples: int  # how much of the utterance it is about
    kind: ResultKind


class RequestScheduler:
    """Appends the effects of its decisions to `out`, which the session hands over after each event.

    `finals_apart`: see `SessionConfig`.
    """

    def __init__(self, finals_apart: bool, out: list[Action]) -> None:
        self._finals_apart = finals_apart
        self._out = out
        self._tickets = 0
        self._request: _Request | None = None
        self._ended: deque[OpenUtterance] = deque()
        self._wanted: OpenUtterance | None = None

    @property
    def backlog_samples(self) -> int:
        """Audio of utterances that ended and have no final yet."""
        return sum(utterance.samples for utterance in self._ended)

    @property
    def unanswered(self) -> OpenUtterance | None:
        """The first utterance that ended and has no final yet."""
        return self._ended[0] if self._ended else None

    @property
    def busy(self) -> bool:
        """Whether an answer is outstanding or a final is still to come."""
        return self._request is not None or bool(self._ended)

    # -- what the session wants --------------------------------------------------------------------------------------

    def want(self, utterance: OpenUtterance) -> None:
        """A hypothesis on the open utterance, with the audio it has when its turn comes."""
        self._wanted = utterance
        self._ask()

    def end(self, utterance: OpenUtterance) -> None:
        """The utterance has all its audio: its final, at once if all of it was heard already."""
        self._wanted = None
        request = self._request
        if request and request.utterance is utterance and not self._serves(request.samples, request.kind, utterance):
            self._forget()
        self._ended.append(utterance)
        self._deliver_known()
        self._ask()

    def drop(self, utterance: OpenUtterance) -> None:
        """The open utterance is thrown away."""
        self._wanted = None
        if self._request and self._request.utterance is utterance:
            self._forget()
        self._ask()

    # -- what the engine says ----------------------------------------------------------------------------------------

    def on_result(self, heard: TranscribeResult) -> None:
        """An answer."""
        request = self._take(heard.ticket)
        if request is None:
            return
        utterance = request.utterance
        if self._is_final(request):
            if not heard.truncated:
                self._ended.popleft()
                self._out.append(utterance.final(heard))
                self._deliver_known()
        else:
            shown = utterance.partial()
            utterance.on_result(heard, request.samples, request.kind)
            now = utterance.partial()
            if (now.committed, now.tentative) != (shown.committed, shown.tentative):
                self._out.append(now)
        self._ask()

    def fail(self, failed: TranscribeFailed) -> None:
        """No answer. A partial is simply made again when it is due; a final is tried once more, then given as known."""
        request = self._take(failed.ticket)
        if request is None:
            return
        utterance = request.utterance
        if self._is_final(request):
            utterance.attempts += 1
            if utterance.attempts >= _FINAL_ATTEMPTS:
                self._ended.popleft()
                trouble = SessionError(failed.code, failed.message, utterance.number)
                self._out += [trouble, replace(utterance.final(None), trouble=trouble)]
                self._deliver_known()
        elif not utterance.troubled:
            utterance.troubled = True
            self._out.append(SessionError(failed.code, failed.message, utterance.number))
        self._ask()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _is_final(self, request: _Request) -> bool:
        return bool(self._ended) and self._ended[0] is request.utterance

    def _serves(self, samples: int, kind: ResultKind, utterance: OpenUtterance) -> bool:
        """Whether an answer on so much audio, made for that, is as good as the utterance's final."""
        return samples == utterance.samples and (kind is ResultKind.FINAL or not self._finals_apart)

    def _take(self, ticket: int) -> _Request | None:
        """The request under way if it has this ticket; it is under way no more."""
        request = self._request
        if request is None or request.ticket != ticket:
            return None
        self._request = None
        return request

    def _forget(self) -> None:
        if self._request:
            self._out.append(CancelRequest(self._request.ticket))
            self._request = None

    def _deliver_known(self) -> None:
        """Finals that need no further answer: nothing was said, or the last hypothesis was made from all of it."""
        while self._ended and self._is_known(self._ended[0]):
            self._out.append(self._ended.popleft().final(None))

    def _is_known(self, ended: OpenUtterance) -> bool:
        return not ended.heard_roughly and self._serves(ended.heard_samples, ended.heard_kind, ended)

    def _ask(self) -> None:
        if self._request is not None:
            return
        if self._ended:
            self._submit(self._ended[0], self._ended[0].samples, ResultKind.FINAL)
        elif self._wanted is not None:
            utterance, self._wanted = self._wanted, None
            kind = ResultKind.PARTIAL if utterance.settled_samples is None else ResultKind.FINAL
            if (utterance.worth_samples, kind) != (utterance.heard_samples, utterance.heard_kind):
                self._submit(utterance, utterance.worth_samples, kind)

    def _submit(self, utterance: OpenUtterance, samples: int, kind: ResultKind) -> None:
        self._tickets += 1
        self._request = _Request(self._tickets, utterance, samples, kind)
        self._out.append(
            Transcribe(
                ticket=self._tickets,
                kind=kind,
                utterance=utterance.number,
                start_samples=utterance.start_samples,
                audio=utterance.audio(samples),
                language=utterance.rules.language,
                context=utterance.rules.context,
                prefix=utterance.prefix,
                draft=utterance.draft,
            )
        )
