"""One OpenAI-compatible chat endpoint: a question in, the written answer out. Not what the answer means.

Retries with back-off are the `openai` library's, and which requests it repeats: 408, 409, 429, 5xx, broken connections.
Nothing of a request or an answer gets into an exception or a log line: both may hold the text, and some servers repeat
the key.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from asr_server.core.errors import TranslationUnavailable

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

    from asr_server.translator.prompt import Prompt

# Local servers want a key in the header and do not look at it.
_NO_KEY = "none"
_DENIED = {
    401: "refuses this server's key (401): check OPENAI_API_KEY",
    402: "wants to be paid (402)",
    403: "does not let this server in (403): check OPENAI_API_KEY",
    404: "does not know its path or the model (404): check OPENAI_BASE_URL and TRANSLATE_MODEL",
    405: "takes no questions (405): check OPENAI_BASE_URL",
}
_BAD_QUESTION = frozenset({400, 413, 422})
_TOO_MUCH_ASKED = _BAD_QUESTION | {501}  # "not implemented" is said of formats, too
# How Gemma's and other templates without such a turn are refused by those who serve them.
_NO_SYSTEM = re.compile(r"\b(?:system|developer) (?:role|message|prompt|instruction)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class EndpointConfig:
    """Where to ask and how. `timeout_s`: for one attempt; `concurrency`: questions at once from the whole process."""

    base_url: str
    model: str
    api_key: str = field(default="", repr=False)
    timeout_s: float = 60.0
    concurrency: int = 4
    max_retries: int = 2


class PromptOutcome(StrEnum):
    """What became of a question."""

    ANSWERED = "answered"
    UNANSWERED = "unanswered"  # the endpoint failed, retries included
    REFUSED = "refused"  # it will not answer this one
    DENIED = "denied"  # it does not let us in


class NoResponse(Exception):
    """The endpoint gave no answer, retries included. `cause`: the kind of failure, no word of what was sent or said."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class Refused(NoResponse):
    """The endpoint will not answer this question (filtered, too long); another one it may."""


@dataclass(frozen=True, slots=True)
class _EndpointCapabilities:
    """What the endpoint takes. `form`: the best `response_format` it is thought to know; `heat`: a temperature;
    `turns`: a turn of the system before the user's."""

    form: int = 0
    heat: bool = True
    turns: bool = True


_FORMS = ("json_schema", "json_object", "")


class ChatEndpoint:
    """Asks at most `concurrency` questions at once; more of them wait in line. Belongs to one event loop."""

    def __init__(self, config: EndpointConfig) -> None:
        self._config = config
        self._room = asyncio.Semaphore(config.concurrency)
        self._client: AsyncOpenAI | None = None
        self._manners = _EndpointCapabilities()
        self._let_in = False
        self.questions: Counter[PromptOutcome] = Counter()  # that were asked so far, by what became of them

    async def ask(self, question: Prompt) -> str:
        """What the model wrote, "" for nothing. Cancelling closes the connection.

        Raises `Refused` for this question, `NoResponse` when the endpoint failed, and `TranslationUnavailable` when it
        does not let us in.
        """
        async with self._room:
            try:
                written = await self._ask(question)
            except (NoResponse, TranslationUnavailable) as failure:
                self.questions[_asked(failure)] += 1
                raise
            self.questions[PromptOutcome.ANSWERED] += 1
            return written

    async def _ask(self, question: Prompt) -> str:
        manners = self._manners
        while True:
            try:
                written = await self._once(question, manners)
            except _Step as step:
                manners = step.manners
            else:
                # Only what was answered is known to be taken: what was refused may have been the text.
                self._manners, self._let_in = manners, True
                return written

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()

    async def _once(self, question: Prompt, manners: _EndpointCapabilities) -> str:
        client = await self._connected()
        import openai

        try:
            answer = await client.chat.completions.with_raw_response.create(**self._body(question, manners))
        except openai.APIStatusError as error:
            raise self._refusal(error, manners) from None
        except openai.OpenAIError as error:
            raise NoResponse(type(error).__name__) from None
        except UnicodeError:
            raise TranslationUnavailable("OPENAI_API_KEY has characters that cannot be sent.") from None
        return _written(answer.content)

    async def _connected(self) -> AsyncOpenAI:
        if self._client is None:
            # Half a second to import: not at start, as most servers never translate, and not on the event loop.
            await asyncio.to_thread(importlib.import_module, "openai.resources.chat")
        if self._client is None:
            self._client = _client(self._config)
        return self._client

    def _body(self, question: Prompt, manners: _EndpointCapabilities) -> dict[str, Any]:
        turns = [("system", question.system), ("user", question.user)]
        if not manners.turns:
            turns = [("user", f"{question.system}\n\n{question.user}")]
        body: dict[str, Any] = {
            "model": self._config.model,
            "messages": [{"role": role, "content": content} for role, content in turns],
        }
        if manners.heat:
            body["temperature"] = question.temperature
        form = _FORMS[manners.form]
        if form == "json_schema":
            schema = {"name": "translations", "strict": True, "schema": question.schema}
            body["response_format"] = {"type": form, "json_schema": schema}
        elif form:
            body["response_format"] = {"type": form}
        return body

    def _refusal(self, error: APIStatusError, manners: _EndpointCapabilities) -> Exception:
        """What a status means: another try with less, a refusal of this question, a closed door, or a failure."""
        status = error.status_code
        if status in _TOO_MUCH_ASKED:
            if manners.heat and "temperature" in error.message:
                return _Step(replace(manners, heat=False))
            if manners.turns and _NO_SYSTEM.search(error.message):
                return _Step(replace(manners, turns=False))
            if manners.form + 1 < len(_FORMS):
                return _Step(replace(manners, form=manners.form + 1))
        cause = f"{type(error).__name__} {status}"
        if status in _BAD_QUESTION or (status == 403 and self._let_in):
            return Refused(cause)
        if status in _DENIED:
            return TranslationUnavailable(f"The translation endpoint {_DENIED[status]}.")
        return NoResponse(cause)


def _client(config: EndpointConfig) -> AsyncOpenAI:
    import httpx2
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    class Bounded(DefaultAsyncHttpxClient):
        """Bounds a try from end to end: the library's own limit begins anew with every byte that comes."""

        async def send(self, *args: Any, **options: Any) -> httpx2.Response:
            try:
                async with asyncio.timeout(config.timeout_s):
                    return await super().send(*args, **options)
            except TimeoutError:
                raise httpx2.ReadTimeout("the whole answer took too long") from None

    client = AsyncOpenAI(
        base_url=config.base_url,
        api_key=config.api_key or _NO_KEY,
        timeout=config.timeout_s,
        max_retries=config.max_retries,
        http_client=Bounded(timeout=config.timeout_s),
    )
    # Of an account at OpenAI, which the library finds in the environment; the endpoint may be anybody's.
    client.organization = client.project = None
    return client


def _asked(failure: NoResponse | TranslationUnavailable) -> PromptOutcome:
    match failure:
        case Refused():
            return PromptOutcome.REFUSED
        case NoResponse():
            return PromptOutcome.UNANSWERED
        case _:
            return PromptOutcome.DENIED


class _Step(Exception):
    """Ask again with fewer demands."""

    def __init__(self, manners: _EndpointCapabilities) -> None:
        super().__init__()
        self.manners = manners


def _written(body: bytes) -> str:
    """The text of the first choice; "" for a refusal, a tool call, and anything that is no chat completion."""
    try:
        content = json.loads(body)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    # Some reasoning models answer in parts: their thoughts are of another type than the text.
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    return "".join(text for text in texts if isinstance(text, str))
