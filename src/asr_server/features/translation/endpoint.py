"""An OpenAI-compatible chat endpoint: a prompt in, the written response out.

The `openai` library retries with back-off: after 408, 409, 429, 5xx and broken connections. No part of a request or a
response gets into an exception or a log line: both may contain the text, and some servers repeat the key.
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
from asr_server.processes.shares import FairShares
from asr_server.processes.threads import current_caller

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

    from asr_server.features.translation.prompt import ChatPrompt

# Local servers require a key in the header and ignore its value.
_NO_KEY = "none"
_MAX_ANSWER_BYTES = 2**20
# Headers of a response that has been read and decompressed do not hold for its content.
_OF_TRANSFER = frozenset({"content-encoding", "content-length", "transfer-encoding"})
_DENIED = {
    401: "refuses this server's key (401): check OPENAI_API_KEY",
    402: "requires payment (402)",
    403: "denies access to this server (403): check OPENAI_API_KEY",
    404: "does not know the path or the model (404): check OPENAI_BASE_URL and TRANSLATE_MODEL",
    405: "accepts no chat completions at this path (405): check OPENAI_BASE_URL",
}
_BAD_REQUEST = frozenset({400, 413, 422})
_UNSUPPORTED = _BAD_REQUEST | {501}  # some servers answer "not implemented" to a response format
# The messages of servers whose chat template has no system role, Gemma's for instance.
_NO_SYSTEM_ROLE = re.compile(r"\b(?:system|developer) (?:role|message|prompt|instruction)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class EndpointConfig:
    """The address of the endpoint, and limits."""

    base_url: str
    model: str
    api_key: str = field(default="", repr=False)
    timeout_s: float = 60.0  # of one attempt
    concurrency: int = 4  # requests at once from the whole process
    max_retries: int = 2  # of one request


class PromptOutcome(StrEnum):
    """The outcome of a prompt."""

    ANSWERED = "answered"
    UNANSWERED = "unanswered"  # the endpoint failed, retries included
    REFUSED = "refused"  # the endpoint refused this prompt
    DENIED = "denied"  # the endpoint denies access to this server


class NoResponse(Exception):
    """The endpoint failed, retries included. `cause`: the kind of failure, without a word of request or response."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class PromptRefused(NoResponse):
    """The endpoint refused this prompt (filtered, too long); it may accept another."""


@dataclass(frozen=True, slots=True)
class _Capabilities:
    """The features that the endpoint is assumed to support."""

    response_format: int = 0  # index of the best one in `_RESPONSE_FORMATS`
    temperature: bool = True
    system_role: bool = True


_RESPONSE_FORMATS = ("json_schema", "json_object", "")


class ChatEndpoint:
    """Sends at most `concurrency` requests at once; callers take turns. For one event loop."""

    def __init__(self, config: EndpointConfig) -> None:
        self._config = config
        self._slots = FairShares(config.concurrency, config.concurrency)
        self._client: AsyncOpenAI | None = None
        self._capabilities = _Capabilities()
        self._accepted = False
        self.outcomes: Counter[PromptOutcome] = Counter()  # of all prompts so far

    async def complete(self, prompt: ChatPrompt) -> str:
        """Return what the model wrote, perhaps "". Cancelling closes the connection.

        Raises `PromptRefused` for this prompt, `NoResponse` if the endpoint failed, and `TranslationUnavailable` if it
        denies access.
        """
        async with self._slots.taken(current_caller()):
            try:
                written = await self._adapt(prompt)
            except (NoResponse, TranslationUnavailable) as failure:
                self.outcomes[_outcome(failure)] += 1
                raise
            self.outcomes[PromptOutcome.ANSWERED] += 1
            return written

    async def _adapt(self, prompt: ChatPrompt) -> str:
        capabilities = self._capabilities
        while True:
            try:
                written = await self._send(prompt, capabilities)
            except _TryWithout as fewer:
                capabilities = fewer.capabilities
            else:
                # Only a success shows what is supported: a refusal may have been about the text.
                # Requests that run at the same time may each find this out; the last one to succeed is kept.
                self._capabilities, self._accepted = capabilities, True
                return written

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()

    async def _send(self, prompt: ChatPrompt, capabilities: _Capabilities) -> str:
        client = await self._connected()
        import openai

        try:
            response = await client.chat.completions.with_raw_response.create(**self._body(prompt, capabilities))
        except openai.APIStatusError as error:
            raise self._classify(error, capabilities) from None
        except openai.OpenAIError as error:
            raise NoResponse(type(error).__name__) from None
        except UnicodeError:
            raise TranslationUnavailable("OPENAI_API_KEY has characters that cannot be sent.") from None
        return _content(response.content)

    async def _connected(self) -> AsyncOpenAI:
        if self._client is None:
            # The import takes half a second: neither at start, as most servers never translate, nor on the event loop.
            # Another call may have made the client meanwhile, so the condition is checked again.
            await asyncio.to_thread(importlib.import_module, "openai.resources.chat")
        if self._client is None:
            self._client = _client(self._config)
        return self._client

    def _body(self, prompt: ChatPrompt, capabilities: _Capabilities) -> dict[str, Any]:
        messages = [("system", prompt.system), ("user", prompt.user)]
        if not capabilities.system_role:
            messages = [("user", f"{prompt.system}\n\n{prompt.user}")]
        body: dict[str, Any] = {
            "model": self._config.model,
            "messages": [{"role": role, "content": content} for role, content in messages],
        }
        if capabilities.temperature:
            body["temperature"] = prompt.temperature
        kind = _RESPONSE_FORMATS[capabilities.response_format]
        if kind == "json_schema":
            schema = {"name": "translations", "strict": True, "schema": prompt.schema}
            body["response_format"] = {"type": kind, "json_schema": schema}
        elif kind:
            body["response_format"] = {"type": kind}
        return body

    def _classify(self, error: APIStatusError, capabilities: _Capabilities) -> Exception:
        """Return the exception for a status: try with fewer capabilities, prompt refused, access denied, or failure."""
        status = error.status_code
        if status in _UNSUPPORTED:
            if capabilities.temperature and "temperature" in error.message:
                return _TryWithout(replace(capabilities, temperature=False))
            if capabilities.system_role and _NO_SYSTEM_ROLE.search(error.message):
                return _TryWithout(replace(capabilities, system_role=False))
            if capabilities.response_format + 1 < len(_RESPONSE_FORMATS):
                return _TryWithout(replace(capabilities, response_format=capabilities.response_format + 1))
        cause = f"{type(error).__name__} {status}"
        if status in _BAD_REQUEST or (status == 403 and self._accepted):
            return PromptRefused(cause)
        if status in _DENIED:
            return TranslationUnavailable(f"The translation endpoint {_DENIED[status]}.")
        return NoResponse(cause)


def _client(config: EndpointConfig) -> AsyncOpenAI:
    import httpx2
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    class Bounded(DefaultAsyncHttpxClient):
        """Bounds the time and the size of the whole response: the library's own timeout starts again with every byte
        that arrives."""

        async def send(self, *args: Any, **options: Any) -> httpx2.Response:
            try:
                async with asyncio.timeout(config.timeout_s):
                    response = await super().send(*args, **{**options, "stream": True})
                    return await _read(response)
            except TimeoutError:
                raise httpx2.ReadTimeout("the whole response took too long") from None

    async def _read(response: httpx2.Response) -> httpx2.Response:
        content = bytearray()
        try:
            async for piece in response.aiter_bytes():
                content += piece
                if len(content) > _MAX_ANSWER_BYTES:
                    raise httpx2.ReadError("the response is too large")
        finally:
            await response.aclose()
        kept = [one for one in response.headers.multi_items() if one[0] not in _OF_TRANSFER]
        return httpx2.Response(response.status_code, headers=kept, content=bytes(content), request=response.request)

    client = AsyncOpenAI(
        base_url=config.base_url,
        api_key=config.api_key or _NO_KEY,
        timeout=config.timeout_s,
        max_retries=config.max_retries,
        http_client=Bounded(timeout=config.timeout_s),
    )
    # The library reads these from the environment; they belong to OpenAI's accounts and not to any other endpoint.
    client.organization = client.project = None
    return client


def _outcome(failure: NoResponse | TranslationUnavailable) -> PromptOutcome:
    match failure:
        case PromptRefused():
            return PromptOutcome.REFUSED
        case NoResponse():
            return PromptOutcome.UNANSWERED
        case _:
            return PromptOutcome.DENIED


class _TryWithout(Exception):
    """The request may succeed with fewer capabilities."""

    def __init__(self, capabilities: _Capabilities) -> None:
        super().__init__()
        self.capabilities = capabilities


def _content(body: bytes) -> str:
    """Return the text of the first choice; "" for a refusal, a tool call, and anything other than a chat completion."""
    try:
        content = json.loads(body)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    # Some reasoning models return parts: the reasoning has another type than the text.
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    return "".join(text for text in texts if isinstance(text, str))
