"""Sockets of live sessions whose frames are Opus: a packet each (RFC 6716), or pieces of an Ogg stream (RFC 7845)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import partial
from urllib.parse import urlencode

from starlette.types import Message, Receive
from starlette.websockets import WebSocket

from asr_server.core.errors import AsrError, DecoderUnavailable, InvalidInput, Overloaded
from asr_server.live import actions
from asr_server.net import websocket_io
from asr_server.net.errors import live_error_message
from asr_server.processes.worker_process import Work, WorkerClient, WorkerStream
from asr_server.server_feature import CoreParts, LiveEndpoint, ServerFeature
from asr_server.services import FeatureParts, Services

_PARAMETER, _OPUS = "encoding", "opus"
_MAX_STREAMS = 1_000  # a decoder takes about 100 kB
_MAX_FRAME_BYTES = 2 * 2**20  # more than 20 s at the highest rate of Opus, 510 kb/s

Decode = Callable[[bytes], Awaitable[bytes]]


_WORK = Work("asr_server.features.live_opus.worker", "decodes Opus", DecoderUnavailable)


class OpusDecoder(WorkerClient):
    """Decodes the streams of all sessions. For one event loop."""

    def __init__(self, idle_timeout_s: float) -> None:
        super().__init__(_WORK, idle_timeout_s)
        self._streams = 0

    @asynccontextmanager
    async def stream(self, rate_hz: int) -> AsyncGenerator[Decode, None]:
        """Open a stream; the process forgets it when the block ends. Raises `DecoderUnavailable` and `Overloaded`.

        Yields what decodes its frames, one call at a time.
        """
        if self._streams == _MAX_STREAMS:
            raise Overloaded("Too many streams of Opus are open; try again later.")
        self._streams += 1
        try:
            with closing(await self.open()) as stream:
                yield partial(_decoded, stream, rate_hz)
        finally:
            self._streams -= 1


async def _decoded(stream: WorkerStream, rate_hz: int, data: bytes) -> bytes:
    """Return what is complete as 16-bit little-endian PCM.

    Raises `DecoderUnavailable` if the process was lost, `invalid_audio` for what is not Opus.
    """
    if len(data) <= _MAX_FRAME_BYTES:
        answer = await stream.request({"rate_hz": rate_hz}, data, is_live=True)
        if "error" not in answer.content:
            return answer.data
    raise InvalidInput(
        "The frames are not Opus: each is one packet, or they are the pieces of an Ogg stream, "
        "with at most 20 s of sound in a frame.",
        code="invalid_audio",
    )


def endpoint(one: LiveEndpoint) -> LiveEndpoint:
    """Return an endpoint for sockets of PCM, which `one` serves, and for sockets of Opus."""

    async def serve_socket(socket: WebSocket) -> None:
        if socket.query_params.get(_PARAMETER) == _OPUS:
            await websocket_io.serve(socket, _serve(socket, one), live_error_message)
        else:
            await one(socket)

    return serve_socket


async def _serve(socket: WebSocket, one: LiveEndpoint) -> None:
    services: Services = socket.app.state.services
    rest = [(name, value) for name, value in socket.query_params.multi_items() if name != _PARAMETER]
    async with AsyncExitStack() as opened:
        try:
            query = actions.parse_query(dict(rest))
            if query.session_id:
                # Positions are counted in bytes of PCM, which the client of such a session does not know.
                raise InvalidInput("A session of Opus cannot be resumed.", code="unsupported_value", param=_PARAMETER)
            decode = await opened.enter_async_context(services.of(OpusDecoder).stream(int(query.sample_rate)))
        except AsrError:
            await socket.accept()  # a refusal is a message
            raise
        scope = {**socket.scope, "query_string": urlencode(rest).encode()}
        await one(WebSocket(scope, _receiving(decode, socket.receive), socket.send))


def _receiving(decode: Decode, receive: Receive) -> Receive:
    async def receive_pcm() -> Message:
        message = await receive()
        if data := message.get("bytes"):
            return {**message, "bytes": await decode(data)}
        return message

    return receive_pcm


def _build(core: CoreParts) -> FeatureParts:
    decoder = OpusDecoder(core.settings.idle_timeout)
    return FeatureParts([decoder], idle_owners=[decoder], close=decoder.close)


SERVER = ServerFeature(live_endpoint=endpoint, build=_build)
