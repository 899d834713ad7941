"""An OpenAI-compatible chat endpoint: a prompt in, the written response out.

Requests are retried with back-off after 408, 409, 429, 5xx and broken connections. No part of a request or a response
gets into an exception or a log line: both may contain the text, and some servers repeat the key.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter

from asr_server.core.errors import TranslationUnavailable
from asr_server.core.metrics import with_series
from asr_server.processes.caller_work import FairShares, current_caller

if TYPE_CHECKING:
    import httpx

    from asr_server.core.settings import Settings
    from asr_server.features.translation.prompt import ChatPrompt

# Local servers require a key in the header and ignore its value.
_NO_KEY = "none"
_MAX_ANSWER_BYTES = 2**20
_MAX_RETRIES = 2  # of one request
# Operators of a slow model raise REQUEST_TIMEOUT. An attempt may take a fifth of it, which leaves time for retries.
_ATTEMPT_S, _ATTEMPT_SHARE, _LONGEST_ATTEMPT_S = 60.0, 0.2, 600.0
_DENIED = {
    401: "refuses this server's key (401): check OPENAI_API_KEY",
    402: "requires payment (402)",
    403: "denies access to this server (403): check OPENAI_API_KEY",
    404: "does not know the path or the model (404): check OPENAI_BASE_URL and TRANSLATE_MODEL",
    405: "accepts no chat completions at this path (405): check OPENAI_BASE_URL",
}
_BAD_REQUEST = frozenset({400, 413, 422})
_NOT_IMPLEMENTED = 501  # some servers answer this to a response format
_NO_STATUS = 599  # there was no response
_BUSY = frozenset({408, 409, 429})
# The wait before the first retry, which doubles each time, its limit, and the longest wait an endpoint may ask for.
_FIRST_WAIT_S, _LONGEST_WAIT_S, _LONGEST_ASKED_S = 0.5, 8.0, 60.0
# Parts of a request that an endpoint may not support, and how its error messages name them. Gemma's chat templates, for
# instance, have no system role. Messages often do not name response formats, which are left out in this order.
_OPTIONAL = {
    "temperature": re.compile("temperature", re.IGNORECASE),
    "system": re.compile(r"\b(?:system|developer) (?:role|message|prompt|instruction)", re.IGNORECASE),
}
_FORMATS = ("json_schema", "json_object")


class PromptOutcome(StrEnum):
    """The outcome of a prompt."""

    ANSWERED = "answered"
    UNANSWERED = "unanswered"  # the endpoint failed, retries included
    REFUSED = "refused"  # the endpoint refused this prompt
    DENIED = "denied"  # the endpoint denies access to this server


class NoResponse(Exception):
    """The endpoint failed, retries included. The message names only the kind of failure: it quotes neither side."""

    outcome = PromptOutcome.UNANSWERED


class PromptRefused(NoResponse):
    """The endpoint refused this prompt (filtered, too long); it may accept another."""

    outcome = PromptOutcome.REFUSED


class ChatEndpoint:
    """Sends at most `TRANSLATE_CONCURRENCY` requests at once; callers take turns. For one event loop."""

    def __init__(
        self,
        settings: Settings,
        registry: CollectorRegistry | None = None,
        *,
        max_retries: int = _MAX_RETRIES,
        least_attempt_s: float = _ATTEMPT_S,
    ) -> None:
        self.settings, self._max_retries = settings, max_retries
        self._slots = FairShares(settings.translate_concurrency, settings.translate_concurrency)
        self._attempt_s = min(max(least_attempt_s, settings.request_timeout * _ATTEMPT_SHARE), _LONGEST_ATTEMPT_S)
        self._client: httpx.AsyncClient | None = None
        self._without: frozenset[str] = frozenset()  # parts in `_OPTIONAL` and `_FORMATS` that it does not support
        self._accepted = False
        self._outcomes = Counter(
            "asr_translation_questions_total",
            "Requests to the translation endpoint.",
            ["outcome"],
            registry=registry,
        )
        with_series(self._outcomes, PromptOutcome)

    async def complete(self, prompt: ChatPrompt) -> str:
        """Return what the model wrote, perhaps "". Cancelling closes the connection.

        Raises `PromptRefused` for this prompt, `NoResponse` if the endpoint failed, and `TranslationUnavailable` if it
        denies access.
        """
        async with self._slots.taken(current_caller.get()):
            try:
                written = await self._adapt(prompt)
            except NoResponse as failure:
                self._outcomes.labels(failure.outcome).inc()
                raise
            except TranslationUnavailable:
                self._outcomes.labels(PromptOutcome.DENIED).inc()
                raise
            self._outcomes.labels(PromptOutcome.ANSWERED).inc()
            return written

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _adapt(self, prompt: ChatPrompt) -> str:
        """Send a prompt until it is answered: without parts that the endpoint rejects, and again if it is busy."""
        without, tried = self._without, 0
        while True:
            status, cause, headers, content = await self._post(self._body(prompt, without))
            if 200 <= status < 300:
                # Only a success shows what is supported: a refusal may have been about the text.
                # Concurrent requests may each find this out; the result of the last success is kept.
                self._without, self._accepted = without, True
                return _content(content)
            if status in _BUSY or (status >= 500 and status != _NOT_IMPLEMENTED):
                tried += 1
                if tried > self._max_retries:
                    raise NoResponse(cause)
                backoff_s = min(_FIRST_WAIT_S * 2 ** (tried - 1), _LONGEST_WAIT_S) * random.uniform(0.75, 1.0)
                await asyncio.sleep(_asked_wait_s(headers) or backoff_s)
            elif status in {*_BAD_REQUEST, _NOT_IMPLEMENTED} and (more := _unsupported(content, without)):
                without |= {more}
            elif status in _BAD_REQUEST or (status == 403 and self._accepted):
                raise PromptRefused(cause)
            elif status in _DENIED:
                raise TranslationUnavailable(f"The translation endpoint {_DENIED[status]}.")
            else:
                raise NoResponse(cause)

    async def _post(self, body: dict[str, Any]) -> tuple[int, str, Mapping[str, str], bytes]:
        """Return the status (`_NO_STATUS` if none came), its name in errors, the headers and the body."""
        import httpx  # 5 MB, which a server that translates nothing does not need

        if self._client is None:
            # Not on the event loop: a new client reads all certificates. Another call may have made one meanwhile.
            made = await asyncio.to_thread(httpx.AsyncClient, timeout=None, follow_redirects=True)
            self._client = self._client or made
        url, content = f"{str(self.settings.openai_base_url).rstrip('/')}/chat/completions", bytearray()
        key = self.settings.openai_api_key
        bearer = (key.get_secret_value().strip() if key else "") or _NO_KEY
        # Without compression a small response cannot become a large one.
        headers = {"authorization": f"Bearer {bearer}", "accept-encoding": "identity"}
        try:
            # The limit is for the whole attempt, however slowly the response comes in.
            async with (
                asyncio.timeout(self._attempt_s),
                self._client.stream("POST", url, json=body, headers=headers) as response,
            ):
                async for piece in response.aiter_bytes():
                    content += piece
                    if len(content) > _MAX_ANSWER_BYTES:
                        raise httpx.ReadError("the response is too large")
        except (httpx.HTTPError, TimeoutError) as error:
            return _NO_STATUS, type(error).__name__, {}, b""
        except (httpx.InvalidURL, UnicodeError):
            raise TranslationUnavailable("OPENAI_BASE_URL or OPENAI_API_KEY cannot be sent.") from None
        return response.status_code, f"status {response.status_code}", response.headers, bytes(content)

    def _body(self, prompt: ChatPrompt, without: frozenset[str]) -> dict[str, Any]:
        messages = [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}]
        if "system" in without:
            messages = [{"role": "user", "content": f"{prompt.system}\n\n{prompt.user}"}]
        body: dict[str, Any] = {"model": self.settings.translate_model, "messages": messages}
        if "temperature" not in without:
            body["temperature"] = prompt.temperature
        if kind := next((kind for kind in _FORMATS if kind not in without), None):
            schema = {"name": "translations", "strict": True, "schema": prompt.schema}
            body["response_format"] = {"type": kind} | ({kind: schema} if kind == "json_schema" else {})
        return body


def _unsupported(content: bytes, without: frozenset[str]) -> str | None:
    """Return the part to leave out next after this refusal, None if there is none. `without`: already left out."""
    message = content.decode(errors="replace")
    named = (part for part, name in _OPTIONAL.items() if name.search(message))
    return next((part for part in (*named, *_FORMATS) if part not in without), None)


def _asked_wait_s(headers: Mapping[str, str]) -> float | None:
    """Return how long the endpoint asks to wait, None if it does not or if that is too long."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            wait_s = float(headers.get(name, "")) * unit_s
        except ValueError:
            continue
        return wait_s if 0 < wait_s <= _LONGEST_ASKED_S else None
    return None


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
