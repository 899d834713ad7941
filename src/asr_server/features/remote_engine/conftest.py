"""A server with OpenAI's transcriptions that answers as told. Its "transcript" is made of the audio alone."""

import email
import json
import threading
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from asr_server.engine import core
from asr_server.engine.conftest import NO_GPU, planned

SLIM = replace(NO_GPU, qwen=False)
KEY = "sk-canary-0123456789"
_WORDS = ("turn", "on", "the", "kitchen", "lights", "please", "and", "then", "play", "seven", "songs", "again")
PATIENCE_S = 30.0
_QUIET = 0.01
_PAUSE_S = 0.01


@dataclass(frozen=True, eq=False)
class Call:
    """A request as it arrived."""

    number: int  # from 0 on
    fields: dict
    samples: np.ndarray  # int16 (n,) of its WAV file
    headers: dict

    @property
    def text(self):
        """The one right transcript: at least five words, "" for silence; another one for each seed of sampling."""
        if np.abs(self.samples).max(initial=0) < _QUIET * 32767:
            return ""
        number = zlib.crc32(self.samples.tobytes() + self.fields.get("seed", "").encode())
        chosen = []
        for _ in range(5 + number % 6):
            number = zlib.crc32(number.to_bytes(4, "big"))
            chosen.append(_WORDS[number % len(_WORDS)])
        return " ".join(chosen)


@dataclass(frozen=True)
class Reply:
    """The bytes that go over the wire."""

    parts: Iterable[bytes] = ()  # of the body
    status: int = 200
    headers: dict = field(default_factory=dict)
    pause_s: float = 0.0  # before each part
    breaks: bool = False  # the connection ends without the end of the body


def refusal(status, **headers):
    """An error in OpenAI's envelope."""
    return Reply([b'{"error": {"message": "no"}}'], status, {name.replace("_", "-"): v for name, v in headers.items()})


def events(*contents, pause_s=0.0, done=True, breaks=False):
    parts = [f"data: {json.dumps(content, ensure_ascii=False)}\n\n".encode() for content in contents]
    head = {"content-type": "text/event-stream; charset=utf-8"}
    return Reply([*parts, b"data: [DONE]\n\n"] if done else parts, headers=head, pause_s=pause_s, breaks=breaks)


def openai(call):
    """Answer as OpenAI's newer models do: words one by one, then the whole text, the language and the usage."""
    words = [word if number == 0 else f" {word}" for number, word in enumerate(call.text.split())]
    deltas = [{"type": "transcript.text.delta", "delta": word} for word in words]
    audio, prompt = len(call.samples) // 1280, 9 + len(call.fields.get("prompt", "").split())
    usage = {"type": "tokens", "input_token_details": {"text_tokens": prompt, "audio_tokens": audio}}
    told = [{"code": "en"}] if words else []
    last = {"type": "transcript.text.done", "text": call.text, "languages": told, "usage": usage}
    return events(*deltas, last, pause_s=_PAUSE_S)


def vllm(call):
    """Answer as `vllm serve` of Qwen3-ASR 0.14 does: the model's output, in pieces that split its marks."""
    written = call.text if "to_language" in call.fields else f"language English<asr_text>{call.text}"
    cut = [written[at : at + 7] for at in range(0, len(written), 7)]
    choices = [*({"delta": {"content": piece}} for piece in cut), {"delta": {"content": ""}, "finish_reason": "stop"}]
    usage = {"choices": [], "usage": {"prompt_tokens": 40, "completion_tokens": 9}}
    return events(*({"object": "transcription.chunk", "choices": [choice]} for choice in choices), usage)


def whole(call):
    """Answer as servers do that do not stream."""
    return Reply([json.dumps({"text": call.text}).encode()], headers={"content-type": "application/json"})


class ScriptedRemote:
    """Serves from `with` to its end. `calls`: what came; `broken`: how many clients left before their answer's end."""

    def __init__(self, script=openai, *, owner="asr-server"):
        self.script, self.calls, self.broken = script, [], 0
        self.models = Reply([json.dumps({"data": [{"id": "served", "owned_by": owner}]}).encode()])
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.remote = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self._reply(self.server.remote.models)

    def do_POST(self):
        remote = self.server.remote
        body = self.rfile.read(int(self.headers["content-length"]))
        kind = f"content-type: {self.headers['content-type']}\r\n\r\n".encode()
        fields, audio = {}, b""
        for part in email.message_from_bytes(kind + body).get_payload():
            content = part.get_payload(decode=True)
            if part.get_filename():
                audio = content
            else:
                fields[part.get_param("name", header="content-disposition")] = content.decode()
        head = {name.lower(): value for name, value in self.headers.items()}
        call = Call(len(remote.calls), fields, np.frombuffer(audio[44:], "<i2"), head)
        remote.calls.append(call)
        self._reply(remote.script(call))

    def _reply(self, reply):
        try:
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for part in reply.parts:
                time.sleep(reply.pause_s)
                self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
                self.wfile.flush()
            if reply.breaks:
                self.close_connection = True
            else:
                self.wfile.write(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            self.server.remote.broken += 1
            self.close_connection = True

    def log_message(self, *_):
        """Say nothing."""


def until(condition):
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_s
        time.sleep(0.005)


@pytest.fixture
def remote():
    """A server that answers as OpenAI's."""
    with ScriptedRemote() as server:
        yield server


@pytest.fixture
def built():
    """Return a function that builds engines; they are unloaded at the end."""
    made = []

    def build(machine=SLIM, **values):
        made.append(core.build_engine(planned(machine, **values)))
        return made[-1]

    yield build
    for engine in made:
        engine.unload()
