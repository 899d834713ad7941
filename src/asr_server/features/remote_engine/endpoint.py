"""The client of a server with OpenAI's transcriptions: a bounded pool of connections, with waits and retries.

Exceptions and log lines contain no part of a request or of an answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator

import httpx
import numpy as np
from numpy.typing import NDArray

from asr_server.core.audio import SAMPLE_RATE, wav_header
from asr_server.core.errors import AsrError, ModelUnavailable, Overloaded, TranscriptionFailed
from asr_server.engine.feature import ModelServer
from asr_server.engine.loops import token_budget
from asr_server.engine.protocol import Utterance
from asr_server.features.remote_engine.answer import Answer, AnswerRefused, added
from asr_server.text import languages

_CONNECT_S, _KEEP_ALIVE_S = 5.0, 30.0
# The limit between two bytes of an answer. Without streaming, none comes until the end. Deadlines end most requests.
_TIMEOUT = httpx.Timeout(600.0, connect=_CONNECT_S, write=60.0, pool=None)
_MAX_ANSWER_BYTES = 2**20
# A busy server is asked again after the time that it requests: the most at a time, and the most in all, by status.
_LONGEST_WAIT_S = 30.0
_PATIENCE_S = {429: 300.0, 503: 30.0}
_RETRIES = 2
_DATA = b"data:"  # begins a line of an event stream
_UNSUPPORTED = frozenset({400, 422, 501})
_DENIED = {401: "VLLM_API_KEY", 403: "VLLM_API_KEY", 404: "VLLM_BASE_URL and MODEL_ID", 405: "VLLM_BASE_URL"}
# Errors of a pooled connection that the server has closed. A new one may work.
_BROKEN = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)


class Endpoint:
    """A client for use on one event loop, which has to close `connections`."""

    def __init__(self, server: ModelServer, max_connections: int, *, uses_proxies: bool) -> None:
        self._url, self._named, self.model = server.url, server.model, ""
        self._is_vllm = False  # the server takes vLLM's own fields
        self._streams = True
        self.connections = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {server.key}"} if server.key else {},
            timeout=_TIMEOUT,
            limits=httpx.Limits(max_connections=max_connections, keepalive_expiry=_KEEP_ALIVE_S),
            trust_env=uses_proxies,
        )

    async def find_model(self) -> None:
        """Choose the model to request. Raises `ModelUnavailable`."""
        try:
            response = await self.connections.get(f"{self._url}/models", timeout=_CONNECT_S)
        except httpx.HTTPError as error:
            raise _unreachable(error) from None
        if response.status_code in (401, 403) or response.status_code >= 500:  # others may have no list of models
            raise ModelUnavailable(_refusal(response.status_code).message)
        try:
            owners = {str(model["id"]): model.get("owned_by") for model in response.json()["data"]}
        except (ValueError, LookupError, TypeError, AttributeError):
            owners = {}
        self.model = self._named or next(iter(owners), "")
        self._is_vllm = "vllm" in owners.values()
        if not self.model:
            raise ModelUnavailable("The remote engine lists no model: set MODEL_ID to the name that it goes by there.")

    async def transcribe(self, utterance: Utterance) -> AsyncGenerator[Answer]:
        """Yield the answer each time it grows, and at its end. Closing the iterator closes the connection.

        Waits for a busy server, and sends the request again if a connection breaks before any text has come. Raises
        `AsrError`.
        """
        began_s, broken = time.monotonic(), 0
        files = {"file": ("audio.wav", await asyncio.to_thread(_wav, utterance.audio), "audio/wav")}
        while True:
            answer, streams = Answer(), self._streams
            url, fields = f"{self._url}/audio/transcriptions", self._fields(utterance, streams=streams)
            try:
                async with self.connections.stream("POST", url, data=fields, files=files) as response:
                    if response.status_code == 200:
                        async for answer in _read(response):
                            yield answer
                        return
            except httpx.HTTPError as error:
                broken += 1
                if not isinstance(error, _BROKEN) or answer.raw or broken > _RETRIES:
                    raise _unreachable(error) from None
                continue
            if response.status_code == 429 or (response.status_code == 503 and "retry-after" in response.headers):
                await _wait(response, began_s)
            elif streams and response.status_code in _UNSUPPORTED:
                self._streams = False  # perhaps only streaming was refused: try without it
            else:
                self._streams = True
                raise _refusal(response.status_code)

    def _fields(self, utterance: Utterance, *, streams: bool) -> dict[str, str]:
        language = languages.code(utterance.language or "")
        fields = {
            "model": self.model,
            "response_format": "json",
            "temperature": f"{utterance.temperature:g}",
            "stream": "true" if streams else "",
            "language": language,
            "prompt": utterance.context,
            "seed": str(utterance.seed) if utterance.temperature else "",
        }
        if self._is_vllm:
            fields |= {
                "to_language": language,  # vLLM forces the answer of Qwen3-ASR to this
                "max_completion_tokens": str(token_budget(len(utterance.audio))),
                "stream_include_usage": fields["stream"],
            }
        return {name: value for name, value in fields.items() if value}


async def _wait(response: httpx.Response, began_s: float) -> None:
    """Wait as long as a busy server asks for. Raises `AsrError` if a request from `began_s` would wait too long."""
    asked, status = response.headers.get("retry-after", ""), response.status_code
    wait_s = min(_LONGEST_WAIT_S, max(0.1, float(asked))) if asked.isdecimal() else 1.0
    if time.monotonic() + wait_s > began_s + _PATIENCE_S[status]:
        if status == 429:
            raise Overloaded("The remote engine is busy.", retry_after_s=int(wait_s))
        raise _refusal(status)
    await asyncio.sleep(wait_s)


async def _read(response: httpx.Response) -> AsyncIterator[Answer]:
    """Yield an answer each time it grows, and at its end. Raises `TranscriptionFailed`."""
    answer, rest, size = Answer(), b"", 0
    is_stream = "event-stream" in response.headers.get("content-type", "")
    try:
        async for chunk in response.aiter_bytes():
            size += len(chunk)
            if size > _MAX_ANSWER_BYTES:
                raise TranscriptionFailed("The answer of the remote engine is too long.")
            *lines, rest = (rest + chunk).split(b"\n") if is_stream else [rest + chunk]
            before = answer
            for line in lines:
                if line.startswith(_DATA) and line.removeprefix(_DATA).strip():
                    answer = added(answer, line.removeprefix(_DATA))
            if answer.raw != before.raw:
                yield answer
        if rest.strip():
            answer = added(answer, rest.removeprefix(_DATA))
    except AnswerRefused:
        raise TranscriptionFailed("The remote engine failed on this audio.") from None
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise TranscriptionFailed("The remote engine sent something that is no transcription.") from None
    if not answer.is_whole:
        raise TranscriptionFailed("The answer of the remote engine broke off.")
    yield answer


def _refusal(status: int) -> AsrError:
    if status in _DENIED:
        return ModelUnavailable(f"The remote engine refuses requests ({status}): check {_DENIED[status]}.")
    if status in (502, 503, 504):  # the server's model is down, or the server behind a proxy
        return ModelUnavailable(f"The remote engine does not serve now ({status}).")
    verb = "failed on" if status >= 500 else "refused"
    return TranscriptionFailed(f"The remote engine {verb} this audio ({status}).")


def _unreachable(error: httpx.HTTPError) -> ModelUnavailable:
    return ModelUnavailable(f"The remote engine cannot be reached ({type(error).__name__}): check that it runs.")


def _wav(audio: NDArray[np.float32]) -> bytes:
    pcm: bytes = np.rint(audio.clip(-1, 1) * 32767).astype("<i2").tobytes()
    return wav_header(len(pcm), SAMPLE_RATE) + pcm
