"""The `remote` engine: the contract of an engine, fulfilled by a server with OpenAI's transcriptions.

Each row is a request on an event loop, which runs in its own thread; `step` hands out the outcomes. A server takes no
forced prefix. The engine therefore keeps committed words, and continues after them from the place in the server's
answer that fits best. A token is a character, since servers report no token ids.
"""

from __future__ import annotations

import queue
import re
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field, replace

from anyio.from_thread import BlockingPortal, start_blocking_portal

from asr_server.core.errors import AsrError, ModelUnavailable, TranscriptionFailed
from asr_server.engine.feature import OnProgress, Plan
from asr_server.engine.loops import loop, token_budget, without_loop
from asr_server.engine.protocol import EngineInfo, Finish, Hypothesis, Option, Tokens, Utterance, in_tokens
from asr_server.features.remote_engine.answer import Answer
from asr_server.features.remote_engine.endpoint import Endpoint
from asr_server.features.remote_engine.vllm import VllmProcess
from asr_server.schedule.model import Outcome, RowDelta, RowDone, RowFailed
from asr_server.text.scripts import LETTERS, continued

# How long a step waits for an outcome. Jobs that arrive during the wait are admitted after it.
_WAIT_S = 0.01
# Twice the token budget, since a token is at least one character in every language.
_CHARACTERS_PER_S = 80.0
# A word with the blanks before it, or a single character of a script that is written without blanks.
_UNIT = re.compile(rf"\s*(?:[{LETTERS}]|[^\s{LETTERS}]+)")


@dataclass(slots=True, eq=False)
class _Row:
    key: int
    utterance: Utterance
    kept: str  # the text that the answer has to begin with
    budget: int  # most characters of the answer
    sent: int = 0  # characters that were handed out
    request: Future[None] = field(default_factory=Future)


class RemoteEngine:
    """Implements `engine.protocol.Engine`. `on_progress` is called in every step, `on_load_progress` while a process
    starts."""

    name = "remote"
    fits = True  # it takes no memory here

    def __init__(self, plan: Plan, on_progress: OnProgress, on_load_progress: OnProgress) -> None:
        self._plan = plan
        self._on_progress, self._on_load_progress = on_progress, on_load_progress
        self._rows: dict[int, _Row] = {}
        self._outcomes: queue.SimpleQueue[tuple[_Row, Outcome]] = queue.SimpleQueue()
        self._resources = ExitStack()  # what `load` opens
        self._process: VllmProcess | None = None
        self._portal: BlockingPortal | None = None
        self._endpoint: Endpoint | None = None
        self.loaded = False  # the server has answered, and has been available since
        self.info = self._unloaded_info = EngineInfo(self.name, plan.model_id, plan.device, plan.dtype)

    @property
    def free_slots(self) -> int:
        return self._plan.max_batch - len(self._rows)

    urgent_slots = free_slots

    def load(self) -> None:
        """Start the server if it is our child process, and request its list of models. Raises `ModelUnavailable`."""
        before = self._process
        if before is not None:
            before.expect_again()
        try:
            endpoint = self._connect()
        except ModelUnavailable:
            if before is None:
                raise
            self._close()  # the process of the last load has ended, perhaps only now
            endpoint = self._connect()
        self.loaded = True
        reason = f"{self._plan.reason('engine')}; it serves {endpoint.model}"
        self.info = replace(
            self._unloaded_info, slots=self._plan.max_batch, options=(Option("engine", True, self.name, reason),)
        )

    def unload(self) -> None:
        """Close the connections, and end the server if it is our child process."""
        self._close()
        self._rows.clear()
        self.loaded, self.info = False, self._unloaded_info

    def admit(self, key: int, item: Utterance, urgent: bool = False) -> None:
        assert self._portal is not None, "admit() before load()"
        item = in_tokens(item, lambda written, forced: tuple(map(ord, written.text)))
        kept = "".join(map(chr, item.prefix))
        row = _Row(key, item, kept, token_budget(len(item.audio), _CHARACTERS_PER_S) + len(kept))
        self._rows[key] = row
        row.request = self._portal.start_task_soon(self._request, row)

    def step(self, begin_s: float | None = None) -> Iterator[Outcome]:
        """Hand out the new outcomes, after a short wait if there are none."""
        self._on_progress()
        wait_s = _WAIT_S if self._rows else 0.0
        while True:
            try:
                row, outcome = self._outcomes.get(wait_s > 0, wait_s)
            except queue.Empty:
                return
            wait_s = 0.0
            if self._rows.get(row.key) is not row:  # it was dropped; a later row may have its key
                continue
            if not isinstance(outcome, RowDelta):
                self.drop(row.key)
            if isinstance(outcome, RowFailed) and isinstance(outcome.error, ModelUnavailable):
                self.loaded = False  # the next job looks for the server; until then `/health` says why
                option = Option("engine", False, "", outcome.error.message)
                self.info = replace(self._unloaded_info, options=(option,))
            yield outcome

    def drop(self, key: int) -> None:
        if (row := self._rows.pop(key, None)) is not None:
            row.request.cancel()

    def _connect(self) -> Endpoint:
        if self._portal is None or self._endpoint is None:
            server = self._plan.remote
            assert server is not None, "a plan for another engine"
            if server.command:
                self._process = process = VllmProcess(server.command)
                self._resources.callback(process.end)
                server = replace(server, url=process.url, key=process.key)
            self._portal = self._resources.enter_context(start_blocking_portal(name="remote"))
            self._endpoint = Endpoint(server, self._plan.max_batch, uses_proxies=not server.command)
            self._resources.enter_context(self._portal.wrap_async_context_manager(self._endpoint.connections))
        while True:
            try:
                self._portal.call(self._endpoint.find_model)
                return self._endpoint
            except ModelUnavailable:
                if self._process is None:
                    raise
                self._process.wait()  # raises once it has ended
                self._on_load_progress()

    def _close(self) -> None:
        for row in self._rows.values():
            row.request.cancel()
            self._outcomes.put((row, RowFailed(row.key, ModelUnavailable("The remote engine has ended."))))
        self._resources.close()
        self._portal = self._endpoint = self._process = None

    async def _request(self, row: _Row) -> None:
        """Put the row's outcomes into the queue."""
        assert self._endpoint is not None
        try:
            async with aclosing(self._endpoint.transcribe(row.utterance)) as answers:
                async for answer in answers:
                    for outcome in _outcomes(row, answer):
                        self._outcomes.put((row, outcome))
        except Exception as error:
            failure = TranscriptionFailed("The request to the remote engine failed.")
            failure.__cause__ = error
            self._outcomes.put((row, RowFailed(row.key, error if isinstance(error, AsrError) else failure)))


def _outcomes(row: _Row, answer: Answer) -> Iterator[Outcome]:
    text, finish = _shown(row, answer)
    # The last word may be incomplete, and trailing blanks may end the text.
    if text and (answer.is_whole or not row.kept):
        if new := text[row.sent :]:
            yield RowDelta(row.key, Tokens(tuple(map(ord, new)), (), new if row.utterance.stream else ""))
        row.sent = len(text)
    if answer.is_whole or finish is not Finish.END:
        yield RowDone(row.key, _hypothesis(row, answer, text, finish))


def _shown(row: _Row, answer: Answer) -> tuple[str, Finish]:
    """Return the text of an answer so far, and why it ends if it does.

    An answer that repeats itself or grows too long is ended here, whatever the server would do.
    """
    text = answer.read()[1]
    text = continued(row.kept, text) if row.kept else text
    if len(text) > row.budget:
        return text[: row.budget], Finish.BUDGET
    units = _UNIT.findall(text)[: None if answer.is_whole else -1]  # the last word may be incomplete
    numbers = {unit.strip(): number for number, unit in enumerate(units)}
    ids = [numbers[unit.strip()] for unit in units]
    if repeated := loop(ids):
        length = sum(map(len, units[: without_loop(ids, repeated)]))
        return text[: max(length, len(row.kept))], Finish.LOOP
    return text, Finish.BUDGET if answer.is_cut and answer.is_whole else Finish.END


def _hypothesis(row: _Row, answer: Answer, text: str, finish: Finish) -> Hypothesis:
    return Hypothesis(
        text=text,
        language=row.utterance.language or (answer.read()[0] if text else ""),
        ids=tuple(map(ord, text)),
        logprobs=(),
        finish=finish,
        audio_tokens=answer.audio_tokens,
        prompt_tokens=answer.prompt_tokens,
        passes=0,
        offsets=tuple(range(1, len(text) + 1)),
        pieces=tuple(char.encode() for char in text),
    )
