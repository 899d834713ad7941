"""A server with OpenAI's transcriptions that answers as told. Its "transcript" is made of the audio alone."""

import email
import json
import random
import threading
import time
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
        if np.abs(self.samples).max(initial=0) < 0.01 * 32767:
            return ""
        chance = random.Random(self.samples.tobytes() + self.fields.get("seed", "").encode())
        return " ".join(chance.choices(_WORDS, k=chance.randint(5, 10)))


@dataclass(frozen=True)
class Reply:
    """The bytes that go over the wire."""

    parts: Iterable[bytes] = ()  # of the body
    status: int = 200
    headers: dict = field(default_factory=dict)
    pause_s: float = 0.0  # before each part
    breaks: bool = False  # the connection ends without the end of the body


def refusal(status, retry_after=""):
    """An error in OpenAI's envelope."""
    return Reply([b'{"error": {"message": "no"}}'], status, {"retry-after": retry_after} if retry_after else {})


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
    return events(*deltas, last, pause_s=0.01)


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


class ScriptedRemote(ThreadingHTTPServer):
    """Serves from `with` to its end. `calls`: what came; `broken`: how many clients left before their answer's end."""

    def __init__(self, script=openai, *, owner="asr-server"):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script, self.calls, self.broken = script, [], 0
        self.models = Reply([json.dumps({"data": [{"id": "served", "owned_by": owner}]}).encode()])
        self.url = f"http://127.0.0.1:{self.server_port}/v1"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=[0.01], daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self._reply(self.server.models)

    def do_POST(self):
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
        call = Call(len(self.server.calls), fields, np.frombuffer(audio[44:], "<i2"), head)
        self.server.calls.append(call)
        self._reply(self.server.script(call))

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
            self.server.broken += 1
            self.close_connection = True

    def log_message(self, *_):
        """Say nothing."""


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
