"""A chat endpoint that answers by a script: correctly, or wrongly in every way that real endpoints have been seen to.

Its "translation" of a line is a made-up word that no other line has, so a test sees when a text is at the wrong line.
"""

from __future__ import annotations

import hashlib
import json
import select
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from asr_server.core.settings import Settings
from asr_server.features.translation.prompt import TranslationConfig
from asr_server.text import languages

KEY = "sk-canary-0123456789"


def translation(text: str) -> str:
    """The one right translation of a line, in Latin letters, whatever the language."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    return "Wort " + digest.translate(str.maketrans("0123456789", "ghijklmnop"))


@dataclass(frozen=True)
class Call:
    """A request as it arrived, header names in lower case. `number` counts requests from 0."""

    number: int
    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def content(self) -> dict[str, Any]:
        # If the instruction is in the same message, the object is the last line of that message.
        return json.loads(self.body["messages"][-1]["content"].split("\n")[-1])

    @property
    def lines(self) -> dict[str, str]:
        return {e["id"]: e["text"] for e in self.content["passage"] if "id" in e}

    @property
    def right(self) -> dict[str, str]:
        return {name: translation(text) for name, text in self.lines.items()}

    @property
    def form(self) -> str:
        return self.body.get("response_format", {}).get("type", "")


@dataclass(frozen=True)
class Answer:
    """The bytes that go over the wire. `sent`: the connection ends after this many bytes of the body."""

    body: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    wait_s: float = 0.0
    sent: int | None = None


Script = Callable[[Call], Answer]


def completion(content: Any, *, finish: str = "stop", **message: Any) -> Answer:
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": content, **message}}
    return Answer(json.dumps({"id": "c", "object": "chat.completion", "created": 1, "choices": [choice]}).encode())


def refusal(status: int, message: str = "no", **headers: str) -> Answer:
    body = {"error": {"message": message, "type": "x", "param": None, "code": None}}
    # The client waits as long as the answer says, so that tests of repeated requests take no time.
    return Answer(json.dumps(body).encode(), status, {"retry-after-ms": "1", **headers})


def right(call: Call) -> Answer:
    return _json(call.right)


def _json(content: Any) -> Answer:
    return completion(json.dumps(content, ensure_ascii=False))


def _merged(call: Call) -> Answer:
    """The first two lines as one, the rest moved up: the last id is gone."""
    first, *rest = call.right.values()
    texts = [" ".join([first, *rest[:1]]), *rest[1:]]
    return _json(dict(zip(call.right, texts, strict=False)))


def _without_the_middle(call: Call) -> Answer:
    texts = list(call.right.items())
    return _json(dict([*texts[: len(texts) // 2], *texts[len(texts) // 2 + 1 :]] or texts))


def _each(change: Callable[[str, str], str]) -> Script:
    """The right answer with every text changed by (source, translation)."""
    return lambda call: _json({name: change(text, translation(text)) for name, text in call.lines.items()})


def once(wrong: Answer | Script) -> Script:
    """Wrong the first time, right ever after."""
    return lambda call: right(call) if call.number else (wrong(call) if callable(wrong) else wrong)


def _whole(call: Call) -> str:
    return json.dumps(call.right)


# Answers from which a careful client gets every line, sometimes after another request.
MENDABLE: dict[str, Script] = {
    "right": right,
    "fenced": lambda call: completion(f"```json\n{_whole(call)}\n```"),
    "prose": lambda call: completion(f"Sure! {{Here}} you are:\n{_whole(call)}\nShall I go on? [y]"),
    "thinking": lambda call: completion(f"<think>Is it {{'101'}}?\n{_whole(call)[:40]}</think>\n\n{_whole(call)}"),
    "parts": lambda call: completion(
        [{"type": "thinking", "thinking": [{"type": "text", "text": "hm {"}]}, {"type": "text", "text": _whole(call)}]
    ),
    "merged": _merged,
    "middle-missing": _without_the_middle,
    # It ends after half of the text, so that the client asks for several lines again.
    "cut-off": lambda call: (
        completion(_whole(call)[: len(_whole(call)) // 2], finish="length") if len(call.lines) > 1 else right(call)
    ),
    "timed": _each(lambda _, text: f"7\n00:00:01,000 --> 00:00:02,500\n{text}"),
    "broken-lines": _each(lambda _, text: text.replace(" ", "\r\n\r\n") + "\u2028"),
    "marked-up": _each(lambda _, text: f"<i>{text}</i>{{\\an8}}"),
    "no-formats": lambda call: refusal(400, "response_format is not supported") if call.form else right(call),
    "no-temperature": lambda call: refusal(400, "Temperature must be 1") if "temperature" in call.body else right(call),
    "no-system": lambda call: refusal(400, "no system role") if len(call.body["messages"]) > 1 else right(call),
    "not-implemented": lambda call: refusal(501, "response_format") if call.form else right(call),
    "broken-once": once(refusal(500)),
}
# Answers from which no line can be used.
HOPELESS: dict[str, Script] = {
    "echo": _each(lambda source, _: source),
    "empty": _each(lambda *_: ""),
    "invisible": _each(lambda *_: "\u200b\u2060\u202e"),
    "only-times": _each(lambda *_: "00:00:01,000 --> 00:00:02,500"),
    "chinese": _each(lambda *_: "这是另一种语言的文字"),
    "babble": _each(lambda source, text: f"{text} " * (len(source) + 40)),
    "excuse": lambda call: completion("I am sorry, but I cannot help with that."),
    "thinking-only": lambda call: completion(f"<think>{_whole(call)}", finish="length"),
    "filtered": lambda call: completion(None, finish="content_filter"),
    "tool": lambda call: completion(None, tool_calls=[{"id": "t", "function": {"arguments": _whole(call)}}]),
    "odd-parts": lambda call: completion(["x", None, 7, {"type": "text"}, {"type": "text", "text": [_whole(call)]}]),
    "no-content": lambda call: completion(None),
    "error-as-200": lambda call: Answer(b'{"error": {"message": "overloaded", "code": 502}}'),
    "page": lambda call: Answer(b"<html>Welcome</html>", headers={"content-type": "text/html"}),
    "no-utf8": lambda call: Answer(right(call).body.replace(b"Wort", b"\xff\xfe")),
    "half-a-character": lambda call: completion('{"101": "\\ud800"}'),
    "deep": lambda call: Answer(b"[" * 50_000),
    "cut-body": lambda call: Answer(right(call).body, sent=30),
    "busy": lambda call: refusal(429),
    "broken": lambda call: refusal(500),
    "too-long": lambda call: refusal(400, "maximum context length exceeded"),
}


class ScriptedLlm(ThreadingHTTPServer):
    """A server that answers each call by `script`. Use it as a context manager."""

    request_queue_size = 64

    def __init__(self, script: Script = right) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script, self.hung_up, self.lock = script, threading.Event(), threading.Lock()
        self.calls: list[Call] = []
        self.base_url = f"http://127.0.0.1:{self.server_port}/v1"

    def __enter__(self) -> ScriptedLlm:
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def restart(self, script: Script) -> None:
        with self.lock:
            self.script, self.calls = script, []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: ScriptedLlm

    def do_POST(self) -> None:
        assert self.path == "/v1/chat/completions"
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.lock:
            call = Call(len(self.server.calls), body, {name.lower(): value for name, value in self.headers.items()})
            self.server.calls.append(call)
            script = self.server.script
        found = script(call)
        # Clients send nothing after a request: a readable connection has been closed by the client.
        waiting = select.poll()  # `select.select` takes no descriptor over 1,023
        waiting.register(self.connection, select.POLLIN)
        if waiting.poll(1_000 * found.wait_s):
            self.server.hung_up.set()
            self.close_connection = True
            return
        self.send_response(found.status)
        for name, value in {"content-type": "application/json", **found.headers}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(found.body)))
        self.end_headers()
        self.wfile.write(found.body[: found.sent])
        self.close_connection = found.sent is not None

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def llm():
    with ScriptedLlm() as server:
        yield server


def endpoint_settings(base_url, **changes):
    given = {"openai_base_url": base_url, "translate_model": "scripted", "openai_api_key": KEY}
    return Settings(_env_file=None, **given | changes)


def config(target="de", limit_s=20.0):
    return TranslationConfig(languages.find(target), 0.1, limit_s)
