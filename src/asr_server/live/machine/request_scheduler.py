"""The session's requests to the engine, one at a time, and what follows from their results.

Finals go first and in order; then the open utterance, always with its newest audio. A result whose ticket is not that
of the request under way is stale and ignored.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from asr_server.live.machine.config import LiveMachineConfig
from asr_server.live.machine.events import (
    Action,
    CancelRequest,
    Final,
    ResultKind,
    SessionError,
    Transcribe,
    TranscribeFailed,
    TranscribeResult,
)
from asr_server.live.machine.utterance import OpenUtterance, Part

# Without its final an utterance has no text, so one that failed is requested once more.
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
        self._open: Part | None = None  # waits for its turn with a partial

    @property
    def backlog_samples(self) -> int:
        """Audio that ended without a final."""
        return sum(part.samples for part in self._ended)

    @property
    def first_without_final(self) -> Part | None:
        """The first part that ended without a final."""
        return self._ended[0] if self._ended else None

    @property
    def busy(self) -> bool:
        """True if a result or a final is still to come."""
        return self._request is not None or bool(self._ended)

    # -- from the session --------------------------------------------------------------------------------------------

    def request_partial(self, part: Part) -> None:
        """Request a hypothesis on the open part, with the audio that it has when its turn comes."""
        self._open = part
        self._submit_next()

    def request_final(self, part: Part) -> None:
        """The part has all its audio. Its final follows at once if a result on all of it is there."""
        self._open = None
        request = self._request
        if request and request.part is part and not self._serves(request.samples, request.kind, part):
            self._cancel()
        self._ended.append(part)
        self._deliver_known()
        self._submit_next()

    def drop(self, utterance: OpenUtterance) -> None:
        """The open utterance is discarded."""
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
        """Note a failure. Partials come again; a final is requested once more, then made of what is known."""
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
        """Return True if the part's partials come from another engine than its final."""
        return self._config.separate_final_engine and not part.utterance.rules.model

    def _kind(self, part: Part) -> ResultKind:
        """Return the kind of the next request for an open part: in a pause it may be the last one."""
        unconfirmed = part.useful_samples - part.confirmed_samples
        if part.endpoint_samples is not None:
            return ResultKind.FINAL
        confirm = self._is_separate(part) and unconfirmed >= self._config.confirm_every_samples
        return ResultKind.FINAL if confirm else ResultKind.PARTIAL

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

    def _deliver(self, result: TranscribeResult | None) -> None:
        """The first part that ended has its final, made of this result or of what is known."""
        message = self._ended.popleft().final(result)
        if message.text or isinstance(message, Final):
            self._out.append(message)

    def _deliver_known(self) -> None:
        """Finals that need no request: of a part without audio, or with a hypothesis made from all of it."""
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
        self._request = _Request(self._tickets, part, samples, kind)
        self._out.append(
            Transcribe(
                ticket=self._tickets,
                kind=kind,
                utterance=part.utterance.number,
                start_samples=part.start_samples,
                audio=part.audio(samples),
                language=part.utterance.rules.language,
                context=part.utterance.rules.context,
                prefix=part.prefix,
                draft=part.draft,
                model=part.utterance.rules.model,
                committed=part.committed,
                text=part.text,
                written_language=part.language,
            )
        )
