"""An OpenAI-compatible chat endpoint: a prompt in, the written response out.

Requests are retried with back-off after 408, 409, 429, 5xx and broken connections. No part of a request or a response
gets into an exception or a log line: both may contain the text, and some servers repeat the key.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING, Any

from asr_server.core.errors import TranslationUnavailable
from asr_server.processes.caller_work import FairShares, current_caller

if TYPE_CHECKING:
    import httpx

    from asr_server.features.translation.prompt import ChatPrompt

# Local servers require a key in the header and ignore its value.
_NO_KEY = "none"
_MAX_ANSWER_BYTES = 2**20
_DENIED = {
    401: "refuses this server's key (401): check OPENAI_API_KEY",
    402: "requires payment (402)",
    403: "denies access to this server (403): check OPENAI_API_KEY",
    404: "does not know the path or the model (404): check OPENAI_BASE_URL and TRANSLATE_MODEL",
    405: "accepts no chat completions at this path (405): check OPENAI_BASE_URL",
}
_BAD_REQUEST = frozenset({400, 413, 422})
_NOT_IMPLEMENTED = 501  # some servers answer this to a response format
_UNSUPPORTED = _BAD_REQUEST | {_NOT_IMPLEMENTED}
_BUSY = frozenset({408, 409, 429})
# The wait before the first retry, which doubles each time, its limit, and the longest wait an endpoint may ask for.
_FIRST_WAIT_S, _LONGEST_WAIT_S, _LONGEST_ASKED_S = 0.5, 8.0, 60.0
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
        self._client: httpx.AsyncClient | None = None
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
            await self._client.aclose()

    async def _send(self, prompt: ChatPrompt, capabilities: _Capabilities) -> str:
        import httpx  # 5 MB, which a server that translates nothing does not need

        if self._client is None:
            # It reads all certificates: not on the event loop. Another call may have made one meanwhile.
            made = await asyncio.to_thread(httpx.AsyncClient, timeout=None, follow_redirects=True)
            self._client = self._client or made
        body = self._body(prompt, capabilities)
        for tried in count(1):
            try:
                return await self._try(self._client, body, capabilities)
            except _TryAgain as failed:
                if tried > self._config.max_retries:
                    raise NoResponse(failed.cause) from None
                wait_s = min(_FIRST_WAIT_S * 2 ** (tried - 1), _LONGEST_WAIT_S) * random.uniform(0.75, 1.0)
                await asyncio.sleep(wait_s if failed.wait_s is None else failed.wait_s)
        raise AssertionError("unreachable")

    async def _try(self, client: httpx.AsyncClient, body: dict[str, Any], capabilities: _Capabilities) -> str:
        import httpx

        url, content = f"{self._config.base_url.rstrip('/')}/chat/completions", bytearray()
        # Without compression a small response cannot become a large one.
        headers = {"authorization": f"Bearer {self._config.api_key or _NO_KEY}", "accept-encoding": "identity"}
        try:
            # The limit is for the whole attempt, however slowly the response comes in.
            async with (
                asyncio.timeout(self._config.timeout_s),
                client.stream("POST", url, json=body, headers=headers) as response,
            ):
                async for piece in response.aiter_bytes():
                    content += piece
                    if len(content) > _MAX_ANSWER_BYTES:
                        raise httpx.ReadError("the response is too large")
        except (httpx.HTTPError, TimeoutError) as error:
            raise _TryAgain(type(error).__name__) from None
        except (httpx.InvalidURL, UnicodeError):
            raise TranslationUnavailable("OPENAI_BASE_URL or OPENAI_API_KEY cannot be sent.") from None
        status = response.status_code
        if response.is_success:
            return _content(bytes(content))
        if status in _BUSY or (status >= 500 and status != _NOT_IMPLEMENTED):
            raise _TryAgain(f"status {status}", _asked_wait_s(response.headers))
        raise self._classify(status, content.decode(errors="replace"), capabilities)

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

    def _classify(self, status: int, message: str, capabilities: _Capabilities) -> Exception:
        """Return the exception for a status: try with fewer capabilities, prompt refused, access denied, or failure."""
        if status in _UNSUPPORTED:
            if capabilities.temperature and "temperature" in message:
                return _TryWithout(replace(capabilities, temperature=False))
            if capabilities.system_role and _NO_SYSTEM_ROLE.search(message):
                return _TryWithout(replace(capabilities, system_role=False))
            if capabilities.response_format + 1 < len(_RESPONSE_FORMATS):
                return _TryWithout(replace(capabilities, response_format=capabilities.response_format + 1))
        cause = f"status {status}"
        if status in _BAD_REQUEST or (status == 403 and self._accepted):
            return PromptRefused(cause)
        if status in _DENIED:
            return TranslationUnavailable(f"The translation endpoint {_DENIED[status]}.")
        return NoResponse(cause)


def _asked_wait_s(headers: httpx.Headers) -> float | None:
    """Return how long the endpoint asks to wait, None if it does not or if that is too long."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            wait_s = float(headers.get(name, "")) * unit_s
        except ValueError:
            continue
        return wait_s if 0 < wait_s <= _LONGEST_ASKED_S else None
    return None


def _outcome(failure: NoResponse | TranslationUnavailable) -> PromptOutcome:
    match failure:
        case PromptRefused():
            return PromptOutcome.REFUSED
        case NoResponse():
            return PromptOutcome.UNANSWERED
        case _:
            return PromptOutcome.DENIED


class _TryAgain(Exception):
    """The request may succeed later."""

    def __init__(self, cause: str, wait_s: float | None = None) -> None:
        super().__init__()
        self.cause, self.wait_s = cause, wait_s


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
