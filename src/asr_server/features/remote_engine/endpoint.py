"""One server with OpenAI's transcriptions: requests on a bounded pool of connections, with waits and retries.

Everything runs on one event loop. No part of a request or of an answer gets into an exception or a log line.
"""

from __future__ import annotations

import asyncio
import io
import time
import wave
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx
import numpy as np
from numpy.typing import NDArray

from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.errors import AsrError, ModelUnavailable, Overloaded, TranscriptionFailed
from asr_server.features.remote_engine import answer as answers
from asr_server.features.remote_engine.answer import Answer

_CONNECT_S, _WRITE_S = 5.0, 60.0
# Between two bytes of an answer; a server that does not stream sends none until the end. Deadlines end most requests.
_READ_S = 600.0
_KEEP_ALIVE_S = 30.0
_MAX_ANSWER_BYTES = 1024 * 1024
# A server that is busy (429) or starts (503) is asked again after the time that it says: at most so long at once, and
# by status in all.
_LONGEST_WAIT_S = 30.0
_PATIENCE_S = {429: 300.0, 503: 30.0}
_RETRIES = 2
_UNSUPPORTED = frozenset({400, 422, 501})
_DENIED = {
    401: "refuses this server's key (401): check VLLM_API_KEY",
    403: "denies access to this server (403): check VLLM_API_KEY",
    404: "does not know the path or the model (404): check VLLM_BASE_URL and MODEL_ID",
    405: "takes no transcriptions at this path (405): check VLLM_BASE_URL",
}
# Errors of a pooled connection that the other side has closed meanwhile; a new one may work.
_BROKEN = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)


@dataclass(frozen=True, slots=True)
class RemoteEndpointConfig:
    """The server's address, and how it is connected to."""

    url: str  # with its `/v1`
    key: str = field(default="", repr=False)
    model: str = ""  # its name at the server, "" for the first that it lists
    connections: int = 32  # most at once
    uses_proxies: bool = True  # use the proxies of the environment


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A recording to transcribe."""

    audio: NDArray[np.float32]  # float32 (n,), mono, 16 kHz
    language: str  # ISO code, "" to detect it
    prompt: str
    temperature: float
    seed: int
    most_tokens: int  # the most that its answer may have


@dataclass(frozen=True, slots=True)
class Served:
    """The server as it was found."""

    model: str
    is_vllm: bool  # it is vLLM, which takes fields of its own


class Unreachable(ModelUnavailable):
    """The server cannot be connected to, or each connection breaks."""


class Endpoint:
    """Made on any thread, used on one event loop."""

    def __init__(self, config: RemoteEndpointConfig) -> None:
        self._config = config
        self._served = Served(config.model, is_vllm=False)
        self._streams = True
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {config.key}"} if config.key else {},
            timeout=httpx.Timeout(_READ_S, connect=_CONNECT_S, write=_WRITE_S, pool=None),
            limits=httpx.Limits(max_connections=config.connections, keepalive_expiry=_KEEP_ALIVE_S),
            trust_env=config.uses_proxies,
        )

    async def find(self) -> Served:
        """Ask what is served. Raises `ModelUnavailable`."""
        try:
            response = await self._client.get(f"{self._config.url}/models", timeout=_CONNECT_S)
        except httpx.HTTPError as error:
            raise _unreachable(error) from None
        if response.status_code in (401, 403) or response.status_code >= 500:
            raise ModelUnavailable(_refusal(response.status_code).message)
        listed = _models(response)
        name = self._config.model or next(iter(listed), "")
        if not name:
            raise ModelUnavailable("The remote engine lists no model: set MODEL_ID to the name that it goes by there.")
        self._served = Served(name, is_vllm="vllm" in listed.values())
        return self._served

    async def transcribe(self, request: Request, on_progress: Callable[[Answer], None]) -> Answer:
        """Return the whole answer; `on_progress` gets it as it grows. Cancelling closes the connection.

        A busy server is waited for, and asked again. Raises `AsrError`.
        """
        began_s, attempt = time.monotonic(), 0
        while True:
            has_begun = False

            def progress(answer: Answer) -> None:
                nonlocal has_begun
                has_begun = True
                on_progress(answer)

            try:
                return await self._send(request, progress)
            except _Busy as busy:
                if time.monotonic() + busy.wait_s > began_s + _PATIENCE_S[busy.status]:
                    raise busy.error from None
                await asyncio.sleep(busy.wait_s)
            except _BROKEN as error:
                attempt += 1
                if has_begun or attempt > _RETRIES:
                    raise _unreachable(error) from None
            except httpx.HTTPError as error:
                raise _unreachable(error) from None

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _send(self, request: Request, on_progress: Callable[[Answer], None]) -> Answer:
        while True:
            streams = self._streams
            call = self._client.stream(
                "POST",
                f"{self._config.url}/audio/transcriptions",
                data=self._fields(request, streams=streams),
                files={"file": ("audio.wav", await asyncio.to_thread(_wav, request.audio), "audio/wav")},
            )
            async with call as response:
                if streams and response.status_code in _UNSUPPORTED:
                    # It may be the stream that is refused. Without it the answer shows.
                    self._streams = False
                    continue
                if response.status_code in _PATIENCE_S and "retry-after" in response.headers:
                    raise _Busy(response)
                if response.status_code != 200:
                    self._streams = True
                    raise _refusal(response.status_code)
                return await _read(response, on_progress)

    def _fields(self, request: Request, *, streams: bool) -> dict[str, str]:
        fields = {
            "model": self._served.model,
            "response_format": "json",
            "temperature": f"{request.temperature:g}",
        }
        fields |= {"stream": "true"} if streams else {}
        fields |= {"language": request.language} if request.language else {}
        fields |= {"prompt": request.prompt} if request.prompt else {}
        fields |= {"seed": str(request.seed)} if request.temperature else {}
        if self._served.is_vllm:
            # Its Qwen3-ASR takes the language that the answer is forced to from `to_language`.
            fields |= {"to_language": request.language} if request.language else {}
            fields |= {"max_completion_tokens": str(request.most_tokens)}
            fields |= {"stream_include_usage": "true"} if streams else {}
        return fields


class _Busy(Exception):
    """The server asks to come again after a time. `error`: what it becomes if that goes on for too long."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__()
        self.status, told = response.status_code, response.headers["retry-after"]
        self.wait_s = min(_LONGEST_WAIT_S, max(0.1, float(told))) if told.isdecimal() else 1.0
        self.error: AsrError = _refusal(self.status)
        if self.status == 429:
            self.error = Overloaded("The remote engine is busy.", retry_after_s=int(self.wait_s))


async def _read(response: httpx.Response, on_progress: Callable[[Answer], None]) -> Answer:
    """Return the answer, whole or as a stream, of a bounded length."""
    answer, body, is_stream = Answer(), b"", "event-stream" in response.headers.get("content-type", "")
    size = 0
    try:
        async for chunk in response.aiter_bytes():
            size += len(chunk)
            if size > _MAX_ANSWER_BYTES:
                raise TranscriptionFailed("The answer of the remote engine is too long.")
            body += chunk
            if is_stream:
                *lines, body = body.split(b"\n")
                before = answer
                for line in lines:
                    answer = answers.added(answer, line.decode().strip())
                if answer.raw != before.raw:
                    on_progress(answer)
        answer = answers.added(answer, body.decode().strip()) if is_stream else answers.whole(body)
    except answers.Refused:
        raise TranscriptionFailed("The remote engine failed on this audio.") from None
    except (ValueError, AttributeError, RecursionError):
        raise TranscriptionFailed("The remote engine sent something that is no transcription.") from None
    if not answer.is_whole:
        raise TranscriptionFailed("The answer of the remote engine broke off.")
    return answer


def _models(response: httpx.Response) -> dict[str, str]:
    """Return the owner of each model by its name; empty where the server has no such list."""
    try:
        listed = response.json()["data"]
        return {str(entry["id"]): str(entry.get("owned_by")) for entry in listed}
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}


def _refusal(status: int) -> AsrError:
    if status in _DENIED:
        return ModelUnavailable(f"The remote engine {_DENIED[status]}.")
    if status in (502, 503, 504):  # its model, or the server of a proxy
        return ModelUnavailable(f"The remote engine does not serve now ({status}).")
    return TranscriptionFailed(
        f"The remote engine {'failed on' if status >= 500 else 'refused'} this audio ({status})."
    )


def _unreachable(error: httpx.HTTPError) -> Unreachable:
    return Unreachable(f"The remote engine cannot be reached ({type(error).__name__}): check that it runs.")


def _wav(audio: NDArray[np.float32]) -> bytes:
    """Mono, 16 bits, 16 kHz."""
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes(np.rint(audio.clip(-1, 1) * 32767).astype("<i2").tobytes())
    return content.getvalue()
