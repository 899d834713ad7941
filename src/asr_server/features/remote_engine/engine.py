"""The `remote` engine: the contract of an engine, fulfilled by a server with OpenAI's transcriptions. Called from one
thread.

Each row is a request on an event loop in a thread of its own; `step` hands out what has come meanwhile. A server cannot
be told how an answer begins. So words that stand are kept, and what follows them is taken from the place in the
server's answer that fits best. A token is a character, since servers tell no others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from asr_server.core.errors import AsrError, ModelUnavailable, TranscriptionFailed
from asr_server.engine.feature import Plan
from asr_server.engine.loops import loop, token_budget, without_loop
from asr_server.engine.protocol import EngineInfo, Finish, Hypothesis, Option, Tokens, Utterance, in_tokens
from asr_server.features.remote_engine.answer import Answer
from asr_server.features.remote_engine.endpoint import Endpoint, RemoteEndpointConfig, Request, Served, Unreachable
from asr_server.features.remote_engine.row_calls import RowCalls
from asr_server.features.remote_engine.vllm import VllmProcess
from asr_server.schedule.ports import Outcome, RowDelta, RowDone, RowFailed
from asr_server.text import languages
from asr_server.text.scripts import LETTERS
from asr_server.text.stable_merge import continued

# How long a step waits for something to come. Jobs that arrive meanwhile are admitted after it.
_WAIT_S = 0.01
_CLOSE_S = 5.0
# Twice the budget of tokens, since each is a character or more in every language.
_CHARACTERS_PER_S = 80.0
# A word with the blanks before it; a character of scripts that are written without blanks.
_UNIT = re.compile(rf"\s*(?:[{LETTERS}]|[^\s{LETTERS}]+)")


@dataclass(slots=True, eq=False)
class _Row:
    """A request."""

    key: int
    utterance: Utterance
    kept: str  # the text that the answer has to begin with
    budget: int  # most tokens of the answer
    sent: int = 0  # characters that were handed out


class RemoteEngine:
    """Implements `engine.protocol.Engine`. `on_progress` is called in every step, `on_load_progress` while a process is
    started."""

    name = "remote"

    def __init__(
        self,
        plan: Plan,
        on_progress: Callable[[], None] = lambda: None,
        on_load_progress: Callable[[], None] = lambda: None,
    ) -> None:
        assert plan.remote is not None, "a plan for another engine"
        self._plan, self._remote = plan, plan.remote
        self._on_progress, self._on_load_progress = on_progress, on_load_progress
        self._rows: dict[int, _Row] = {}
        self._calls: RowCalls[Answer] | None = None
        self._endpoint: Endpoint | None = None
        self._is_lost = True  # until the server has answered
        self._process: VllmProcess | None = None
        self._info = self._unloaded_info = EngineInfo(self.name, plan.model_id, plan.device, plan.dtype)

    @property
    def info(self) -> EngineInfo:
        """Return the facts as of the last load, unload or lost connection."""
        return self._info

    @property
    def loaded(self) -> bool:
        """True if the server answered, and no connection to it has failed since."""
        return not self._is_lost

    @property
    def fits(self) -> bool:
        """True: it takes no memory here."""
        return True

    @property
    def free_slots(self) -> int:
        """Free connections."""
        return self._plan.max_batch - len(self._rows)

    @property
    def urgent_slots(self) -> int:
        """Return `free_slots`: each row begins at once."""
        return self.free_slots

    def load(self) -> None:
        """Start the server's process if it is one of ours, and ask it what it has. Raises `ModelUnavailable`."""
        before = self._process
        try:
            served = self._connect()
        except ModelUnavailable:
            # The process of before crashed: its connections may end earlier than it does.
            if before is None or before.alive or self._process is not before:
                raise
            served = self._connect()
        self._is_lost = False
        reason = next(option.reason for option in self._plan.options if option.name == "engine")
        self._info = replace(
            self._unloaded_info,
            slots=self._plan.max_batch,
            options=(Option("engine", True, self.name, f"{reason}; it serves {served.model}"),),
        )

    def _connect(self) -> Served:
        if self._calls is None:
            self._calls = RowCalls("remote")
        if self._remote.command and (self._process is None or not self._process.alive):
            self._end_process()
            self._process = VllmProcess(self._remote.command)
        if self._endpoint is None:
            self._endpoint = Endpoint(self._config())
        return self._await_server(self._endpoint, self._calls)

    def unload(self) -> None:
        """Close the connections, and end the server's process if it is one of ours."""
        for key in list(self._rows):
            self.drop(key)
        self._end_process()
        if self._calls is not None:
            self._calls.close()
            self._calls = None
        self._is_lost = True
        self._info = self._unloaded_info

    def admit(self, key: int, item: Utterance, urgent: bool = False) -> None:
        """Send a row's request. Drafts have no use here."""
        endpoint = self._endpoint
        assert endpoint is not None, "admit() before load()"
        assert self._calls is not None
        item = in_tokens(item, lambda written, forced: tuple(map(ord, written.text)))
        kept = "".join(map(chr, item.prefix))
        row = _Row(key, item, kept, token_budget(len(item.audio), _CHARACTERS_PER_S) + len(kept))
        self._rows[key] = row
        self._calls.start(key, lambda tell: _transcribe(endpoint, item, tell))

    def step(self, begin_s: float | None = None) -> Iterator[Outcome]:
        """Hand out what has come, after a short wait if there is nothing."""
        self._on_progress()
        if self._calls is not None:
            for key, news in self._calls.news(_WAIT_S if self._rows else 0.0):
                yield from self._outcomes(self._rows[key], news)

    def drop(self, key: int) -> None:
        """End a row's request: its connection is closed."""
        if self._rows.pop(key, None) is not None and self._calls is not None:
            self._calls.end(key)

    def _config(self) -> RemoteEndpointConfig:
        if self._process is not None:
            return RemoteEndpointConfig(
                self._process.url, self._process.key, self._remote.model, self._plan.max_batch, uses_proxies=False
            )
        return RemoteEndpointConfig(self._remote.url, self._remote.key, self._remote.model, self._plan.max_batch)

    def _await_server(self, endpoint: Endpoint, calls: RowCalls[Answer]) -> Served:
        """Return the server as it was found; a process of ours is given the time that it needs to start."""
        while True:
            try:
                return calls.run(endpoint.find())
            except ModelUnavailable:
                if self._process is None:
                    raise
                self._process.wait()  # raises once it has ended
                self._on_load_progress()

    def _end_process(self) -> None:
        """Close the connections too: another process is reached elsewhere."""
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None and self._calls is not None:
            with suppress(TimeoutError):  # the loop is about to be stopped
                self._calls.run(endpoint.close(), _CLOSE_S)
        if self._process is not None:
            self._process.end()
            self._process = None

    def _outcomes(self, row: _Row, news: Answer | Exception) -> Iterator[Outcome]:
        if isinstance(news, Exception):
            if isinstance(news, Unreachable):
                self._on_lost(news)
            self.drop(row.key)
            yield RowFailed(row.key, news if isinstance(news, AsrError) else _failed(news))
            return
        text, finish = _shown(row, news)
        # A word at the end may go on, and blanks there may be the last.
        if text and (news.is_whole or not row.kept):
            ids = tuple(map(ord, text[row.sent :]))
            if ids:
                yield RowDelta(row.key, Tokens(ids, (), text[row.sent :] if row.utterance.stream else ""))
            row.sent = len(text)
        if news.is_whole or finish is not Finish.END:
            self.drop(row.key)
            yield RowDone(row.key, _hypothesis(row, news, text, finish))

    def _on_lost(self, error: Unreachable) -> None:
        """The next job asks the server again what it has; until then `/health` says that it is gone."""
        self._is_lost = True
        self._info = replace(self._unloaded_info, options=(Option("engine", False, "", error.message),))


async def _transcribe(endpoint: Endpoint, item: Utterance, tell: Callable[[Answer], None]) -> None:
    request = Request(
        audio=item.audio,
        language=languages.code(item.language or ""),
        prompt=item.context,
        temperature=item.temperature,
        seed=item.seed,
        most_tokens=token_budget(len(item.audio)),
    )
    tell(await endpoint.transcribe(request, tell))


def _shown(row: _Row, answer: Answer) -> tuple[str, Finish]:
    """Return the text of an answer as far as it goes, and why it ends if it does.

    An answer that repeats itself or grows too long is ended here, whatever the server would do.
    """
    text = continued(row.kept, answer.text).text if row.kept else answer.text
    if len(text) > row.budget:
        return text[: row.budget], Finish.BUDGET
    units = _UNIT.findall(text)[: None if answer.is_whole else -1]  # the last word may go on
    numbers = {unit.strip(): number for number, unit in enumerate(units)}
    ids = [numbers[unit.strip()] for unit in units]
    if repeated := loop(ids):
        length = sum(map(len, units[: without_loop(ids, repeated)]))
        return text[: max(length, len(row.kept))], Finish.LOOP
    return text, Finish.BUDGET if answer.is_cut and answer.is_whole else Finish.END


def _hypothesis(row: _Row, answer: Answer, text: str, finish: Finish) -> Hypothesis:
    return Hypothesis(
        text=text,
        language=row.utterance.language or (answer.spoken_language if text else ""),
        ids=tuple(map(ord, text)),
        logprobs=(),
        finish=finish,
        audio_tokens=answer.audio_tokens,
        prompt_tokens=answer.prompt_tokens,
        passes=0,
        offsets=tuple(range(1, len(text) + 1)),
        pieces=tuple(char.encode() for char in text),
    )


def _failed(error: Exception) -> TranscriptionFailed:
    failure = TranscriptionFailed("The request to the remote engine failed.")
    failure.__cause__ = error
    return failure
