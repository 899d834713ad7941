"""The session's requests to the engine, one at a time, and what follows from their results.

Finals go first and in order; then the open utterance, always with its newest audio. A result whose ticket is not that
of the request under way is stale and ignored.
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

# Without its final an utterance has no text, so one that failed is requested once more.
_FINAL_ATTEMPTS = 2


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    ticket: int
    utterance: OpenUtterance
    samples: int  # of the utterance, from its start
    kind: ResultKind


class RequestScheduler:
    """Appends actions to `out`, which the session returns after each event.

    `separate_final_engine`: see `LiveMachineConfig`.
    """

    def __init__(self, separate_final_engine: bool, out: list[Action]) -> None:
        self._separate_final_engine = separate_final_engine
        self._out = out
        self._tickets = 0
        self._request: _Request | None = None
        self._ended: deque[OpenUtterance] = deque()
        self._open: OpenUtterance | None = None  # waits for its turn with a partial

    @property
    def backlog_samples(self) -> int:
        """Audio of ended utterances without a final."""
        return sum(utterance.samples for utterance in self._ended)

    @property
    def first_without_final(self) -> OpenUtterance | None:
        """The first ended utterance without a final."""
        return self._ended[0] if self._ended else None

    @property
    def busy(self) -> bool:
        """Whether a result or a final is still to come."""
        return self._request is not None or bool(self._ended)

    # -- from the session --------------------------------------------------------------------------------------------

    def request_partial(self, utterance: OpenUtterance) -> None:
        """Request a hypothesis on the open utterance, with the audio that it has when its turn comes."""
        self._open = utterance
        self._submit_next()

    def request_final(self, utterance: OpenUtterance) -> None:
        """The utterance has all its audio. Its final follows at once if a result on all of it is there."""
        self._open = None
        request = self._request
        if request and request.utterance is utterance and not self._serves(request.samples, request.kind, utterance):
            self._cancel()
        self._ended.append(utterance)
        self._deliver_known()
        self._submit_next()

    def drop(self, utterance: OpenUtterance) -> None:
        """The open utterance is discarded."""
        self._open = None
        if self._request and self._request.utterance is utterance:
            self._cancel()
        self._submit_next()

    # -- from the engine ---------------------------------------------------------------------------------------------

    def on_result(self, result: TranscribeResult) -> None:
        """The engine's result for a request."""
        request = self._take(result.ticket)
        if request is None:
            return
        utterance = request.utterance
        if self._is_final(request):
            if not result.truncated:
                self._ended.popleft()
                self._out.append(utterance.final(result))
                self._deliver_known()
        else:
            shown = utterance.partial()
            utterance.on_result(result, request.samples, request.kind)
            now = utterance.partial()
            if (now.committed, now.tentative) != (shown.committed, shown.tentative):
                self._out.append(now)
        self._submit_next()

    def on_failure(self, failed: TranscribeFailed) -> None:
        """No result. Partials come again by themselves; a final is requested once more, then made of what is known."""
        request = self._take(failed.ticket)
        if request is None:
            return
        utterance = request.utterance
        if self._is_final(request):
            utterance.attempts += 1
            if utterance.attempts >= _FINAL_ATTEMPTS:
                self._ended.popleft()
                error = SessionError(failed.code, failed.message, utterance.number)
                self._out += [error, replace(utterance.final(None), error=error)]
                self._deliver_known()
        elif not utterance.failure_reported:
            utterance.failure_reported = True
            self._out.append(SessionError(failed.code, failed.message, utterance.number))
        self._submit_next()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _is_final(self, request: _Request) -> bool:
        return bool(self._ended) and self._ended[0] is request.utterance

    def _serves(self, samples: int, kind: ResultKind, utterance: OpenUtterance) -> bool:
        """Whether a result of this kind on so many samples is as good as the utterance's final."""
        return samples == utterance.samples and (kind is ResultKind.FINAL or not self._separate_final_engine)

    def _take(self, ticket: int) -> _Request | None:
        """The request under way if it has this ticket; it ends with that."""
        request = self._request
        if request is None or request.ticket != ticket:
            return None
        self._request = None
        return request

    def _cancel(self) -> None:
        if self._request:
            self._out.append(CancelRequest(self._request.ticket))
            self._request = None

    def _deliver_known(self) -> None:
        """Finals that need no request: of an utterance without audio, or with a hypothesis made from all of it."""
        while self._ended and self._is_known(self._ended[0]):
            self._out.append(self._ended.popleft().final(None))

    def _is_known(self, ended: OpenUtterance) -> bool:
        return not ended.result_truncated and self._serves(ended.result_samples, ended.result_kind, ended)

    def _submit_next(self) -> None:
        if self._request is not None:
            return
        if self._ended:
            self._submit(self._ended[0], self._ended[0].samples, ResultKind.FINAL)
        elif self._open is not None:
            utterance, self._open = self._open, None
            kind = ResultKind.PARTIAL if utterance.endpoint_samples is None else ResultKind.FINAL
            if (utterance.useful_samples, kind) != (utterance.result_samples, utterance.result_kind):
                self._submit(utterance, utterance.useful_samples, kind)

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
