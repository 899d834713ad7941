"""`/v1/listen` as Deepgram's clients know it: a recording in the body of a POST, or a live session."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, WebSocket
from fastapi.responses import JSONResponse
from starlette.datastructures import FormData
from starlette.types import Message

from asr_server.core.audio import samples_to_s
from asr_server.core.errors import AsrError, InvalidInput
from asr_server.core.transcript import Word
from asr_server.features.deepgram import answers, options
from asr_server.features.deepgram.options import ListenOptions, LiveListenOptions
from asr_server.live.actions import ENCODINGS
from asr_server.live.inference import WordTimestamps
from asr_server.live.machine.events import (
    Audio,
    Ending,
    Event,
    Final,
    Flush,
    Partial,
    SessionError,
    TurnConfig,
    UtteranceStarted,
)
from asr_server.live.outbox import Message as LiveMessage
from asr_server.live.session import LiveConnection, LiveSessionOptions
from asr_server.net import body, websocket_io
from asr_server.net.access import selected_subprotocol
from asr_server.net.body import while_connected
from asr_server.recordings import forms
from asr_server.recordings.pipeline import RunOptions
from asr_server.recordings.requests import WordTimes
from asr_server.recordings.route import noted
from asr_server.server_feature import ServerFeature
from asr_server.services import CallerDep, Services, ServicesDep

router = APIRouter()

_MAX_TEXT = 1_000  # characters of a message
_MAX_JSON_BYTES = 64 * 1024
_FILE = {"schema": {"type": "string", "format": "binary"}}
_SCHEMA = {
    "requestBody": {"required": True, "content": {"audio/*": _FILE, "application/octet-stream": _FILE}},
    "parameters": [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in ListenOptions.model_json_schema()["properties"].items()
    ],
}


@router.post("/v1/listen", tags=["audio"], response_model=dict[str, Any], responses=forms.ERRORS, openapi_extra=_SCHEMA)
async def listen(request: Request, services: ServicesDep, caller: CallerDep) -> JSONResponse:
    """Transcribe a recording as Deepgram's API does: the body, or `url` in a body of JSON."""
    wanted = options.read(request.query_params, ListenOptions)
    services.admission.check()
    is_url = request.headers.get("content-type", "").lower().startswith("application/json")
    async with forms.read(request, services, _form_of_json if is_url else body.read_form) as sent:
        if (file := body.upload(sent, "file")) is None:
            raise InvalidInput(
                "The request has no recording: send its bytes as the body.",
                code="missing_required_parameter",
                param="file",
            )
        fields = [("response_format", "verbose_json"), ("timestamp_granularities[]", "word")]
        fields += [("timestamp_granularities[]", "segment"), ("language", wanted.asked_language)]
        fields += [("speakers", "true")] * wanted.diarize + [("prompt", wanted.hotwords)]
        fields += wanted.text_fields
        form = FormData([("file", file), *fields])
        asked, file = forms.parse(form, services, forms.transcription_request, any_model=True)
        run = RunOptions(caller=caller.share, owner=caller.owner)
        transcript = await while_connected(request.receive, services.pipeline.transcribe(file.file, asked, run))
    timing = noted(request, transcript)
    found = answers.recording(
        transcript,
        answers.metadata(request.state.id, services.plan.model_id),
        utterances=wanted.utterances,
        names_language=not wanted.asked_language,
    )
    return JSONResponse(found, headers=timing)


async def _form_of_json(request: Request, max_bytes: int) -> FormData:
    """Return the form of a JSON body, which names a URL. Raises `InvalidInput`."""
    values = await body.read_json(request, min(max_bytes, _MAX_JSON_BYTES))
    if not isinstance(url := values.get("url"), str) or not url:
        raise InvalidInput(
            "The body has no 'url': name one, or send the bytes of the recording.",
            code="missing_required_parameter",
            param="url",
        )
    return FormData([("url", url)])


@router.websocket("/v1/listen")
async def listen_live(socket: WebSocket) -> None:
    """Live transcription over Deepgram's protocol."""
    services: Services = socket.app.state.services
    try:
        wanted = options.read(socket.query_params, LiveListenOptions)
        assert isinstance(wanted, LiveListenOptions)
        rules = _rules(services, wanted)
    except InvalidInput as error:
        websocket_io.count_error(socket, error)
        await websocket_io.reject_websocket(socket, error)
        return
    await socket.accept(subprotocol=selected_subprotocol(socket))
    connection = ListenConnection(socket, services, wanted, rules)
    await websocket_io.serve(socket, connection.run(), _error)


def _rules(services: Services, wanted: LiveListenOptions) -> TurnConfig:
    pause_ms, language = wanted.pause_ms, services.catalog.language(wanted.asked_language)
    rules = services.live.turn_config(
        manual=wanted.is_manual,
        semantic=None if pause_ms is None else False,
        language=language,
        context=wanted.hotwords,
    )
    return rules if pause_ms is None else replace(rules, min_silence_ms=pause_ms)


class ListenConnection:
    """One connection with its session."""

    def __init__(self, socket: WebSocket, services: Services, wanted: LiveListenOptions, rules: TurnConfig) -> None:
        self._socket, self._services, self._wanted, self._rules = socket, services, wanted, rules
        self._meta = answers.metadata(f"req_{secrets.token_hex(12)}", services.plan.model_id)
        self._held: Final | None = None  # a final whose words are being timed
        self._behind = deque[LiveMessage]()  # the messages that came after it
        self._flushes = deque[bool]()  # for each flush without an answer: whether the stream ends with it
        self._ended = asyncio.Event()  # set once the answer to `CloseStream` is sent
        self._samples = 0
        self._is_file = False  # a container, which is not decoded here

    async def run(self) -> None:
        """Serve until the client leaves or ends the stream. Raises the `AsrError` that ended the session."""
        rate_hz, owner = int(self._wanted.sample_rate), self._socket.state.caller.owner
        connection = await self._services.live.open(
            LiveSessionOptions(self._rules, rate_hz, WordTimes.ESTIMATED, owner)
        )
        clean: bool | None = False
        try:
            clean = await websocket_io.read_and_write(self._read(connection), self._write(connection))
        except AsrError as error:
            # Sent before leaving the session: at shutdown the server waits for the client to read it, then disconnects.
            await websocket_io.end(self._socket, error, _error)
        finally:
            self._services.live.disconnect(connection, clean=bool(clean), resumable=False)

    async def _read(self, connection: LiveConnection) -> bool:
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return websocket_io.closed_cleanly(message)
            try:
                event = self._event(message)
            except InvalidInput as error:
                await self._socket.send_json(_error(error))
                continue
            if event is not None:
                await connection.send(event)
            if isinstance(event, Flush) and self._flushes and self._flushes[-1]:
                await self._end()
                return True

    def _event(self, message: Message) -> Event | None:
        if data := message.get("bytes"):
            if self._is_file:
                return None
            self._is_file = self._samples == 0 and self._wanted.is_file(data)
            if self._is_file:
                raise InvalidInput(
                    "The audio begins as a file, which is not heard. Live audio is raw: name its 'encoding' and "
                    "'sample_rate', or send the file with POST /v1/listen.",
                    param="encoding",
                )
            pcm = ENCODINGS[self._wanted.encoding or "linear16"].pcm(data)
            self._samples += len(pcm) // 2
            return Audio(pcm)
        # An empty binary message ends the stream, as clients of the first version of the protocol do.
        kind = "CloseStream" if message.get("text") is None else _kind(message["text"])
        if kind in ("Finalize", "CloseStream"):
            self._flushes.append(kind == "CloseStream")
            return Flush()
        if kind == "KeepAlive":
            return None
        raise InvalidInput("Known messages are KeepAlive, Finalize and CloseStream.", param="type")

    async def _end(self) -> None:
        """Wait for the last words, send the last message and close. Audio faster than real time prolongs this."""
        await self._ended.wait()
        seconds = self._samples / int(self._wanted.sample_rate)
        await websocket_io.close(self._socket, 1000, "", answers.session_end(self._meta, seconds))

    async def _write(self, connection: LiveConnection) -> None:
        async for outgoing in connection.messages():
            for message in self.messages(outgoing.message):
                await self._socket.send_json(message)

    def messages(self, message: LiveMessage) -> Iterator[dict[str, Any]]:
        """Yield messages for the client. A final waits for its word times, and later messages wait for the final."""
        if self._held is not None:
            if not isinstance(message, WordTimestamps) or message.utterance != self._held.utterance:
                self._behind.append(message)
                return
            yield from self._final(message.words)
            waiting, self._behind = self._behind, deque()
            for each in waiting:
                yield from self.messages(each)
            return
        match message:
            case Final():
                self._held = message
                if not message.text:
                    yield from self._final(())
            case Partial() if self._wanted.interim_results:
                span_s = samples_to_s(message.start_samples), samples_to_s(message.end_samples)
                flags = {"is_final": False, "speech_final": False, "from_finalize": False}
                yield answers.results(message.text, (), span_s, self._meta, **flags)
            case UtteranceStarted(start_samples=start_samples) if self._wanted.vad_events:
                began_s = round(samples_to_s(start_samples), 3)
                yield {"type": "SpeechStarted", "channel": [0], "timestamp": began_s}
            case SessionError():
                yield _error(message)

    def _final(self, words: Sequence[Word]) -> Iterator[dict[str, Any]]:
        final, self._held = self._held, None
        assert final is not None
        by_client = final.ending is Ending.FLUSH
        is_end = self._flushes.popleft() if by_client and self._flushes else False
        by_pause = final.ending is Ending.PAUSE
        span_s = samples_to_s(final.start_samples), samples_to_s(final.end_samples)
        flags = {"is_final": True, "speech_final": by_pause, "from_finalize": by_client}
        yield answers.results(final.text, words, span_s, self._meta, **flags)
        if by_pause and words and self._wanted.utterance_end_ms is not None:
            yield {"type": "UtteranceEnd", "channel": [0, 1], "last_word_end": words[-1].end_ms / 1000}
        if is_end:
            self._ended.set()


def _error(about: AsrError | SessionError) -> dict[str, Any]:
    return {"type": "Error", "description": about.message, "message": about.message, "variant": about.code}


def _kind(text: str) -> Any:
    try:
        found = websocket_io.parse_json(text) if len(text) <= _MAX_TEXT else None
    except (ValueError, RecursionError):
        return None
    return found.get("type") if isinstance(found, dict) else None


SERVER = ServerFeature(routers=[router])
