"""Recorded conversations, one a file in `conversations/PROTOCOL`: what a client sends, and what the server answers.

The first step of a file says what it shows, and has the `settings` of a server of its own if it needs one. `get` has
all fields of the next message, `has` some of them, and `until` some of the first message with these values. In values
- `$name` is the same throughout; `$said` are the words of the bundled recording;
- `/pattern/` is found in the text;
- a number with a decimal point is one within 0.1 of it;
- `{words: TEXT, errors: N}` is a text with at most so many other words.
Partial texts are checked and left out: how many there are depends on the time.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import threading
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from string import Template
from urllib.parse import urlencode

import numpy as np
import pytest
import soxr
import yaml
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from wyoming.event import Event, read_event, write_event

from asr_server.audio.g711 import Companding
from asr_server.features.wyoming.wyoming import Bridge, BridgeTarget
from E2Etest.drive import recordings
from E2Etest.drive.session import pieces
from E2Etest.live.readers import reader
from E2Etest.realtime.session import FRAME

_WAIT_S = 60
_LAWS = {"pcmu": Companding.MU, "mulaw": Companding.MU, "pcma": Companding.A}


class _Live:
    path, rate = "/ws/transcribe", 16_000

    def __init__(self, server, query, key="", protocols=None):
        headers = {"Authorization": f"Bearer {key or server.key}"} if key or server.key else {}
        address = f"{server.live_url.removesuffix(_Live.path)}{self.path}?{urlencode(query)}"
        self.socket = connect(address, subprotocols=protocols, additional_headers=headers, open_timeout=_WAIT_S)
        self._texts = {}

    def send(self, message):
        self.socket.send(json.dumps(message) if isinstance(message, dict) else message)

    def say(self, audio, size, rate):
        for piece in pieces(audio, size):
            self.socket.send(piece)

    def close(self):
        self.socket.close()

    def receive(self):
        while self._is_partial(message := json.loads(self.socket.recv(timeout=_WAIT_S))):
            pass
        return message

    def _is_partial(self, message):
        if "committed" not in message:
            return False
        assert message["committed"].startswith(self._texts.get(message["utterance"], ""))
        assert message["text"] == message["committed"] + message["tentative"]
        assert message["is_final"] is not message["is_partial"]
        self._texts[message["utterance"]] = message["committed"]
        return message["is_partial"]


class _Realtime(_Live):
    path, rate = "/v1/realtime", 24_000

    def say(self, audio, size, rate):
        for piece in pieces(audio, size):
            self.send({"type": "input_audio_buffer.append", "audio": base64.b64encode(piece).decode()})

    def _is_partial(self, message):
        if '"rate": 8000' not in json.dumps(message):  # the client's types know one rate only
            FRAME.validate_python(message)
        if message["type"].endswith(".delta"):
            self._texts[message["item_id"]] = self._texts.get(message["item_id"], "") + message["delta"]
            return True
        assert "transcript" not in message or message["transcript"] == self._texts.get(message["item_id"], "")
        return False


class _Deepgram(_Live):
    path = "/v1/listen"

    def _is_partial(self, message):
        return message["type"] == "Results" and not message["is_final"]


class _Wyoming(_Live):
    def __init__(self, server, query):
        self.socket = socket.create_connection(("127.0.0.1", server.bridge_port), timeout=_WAIT_S)
        self._stream = self.socket.makefile("rwb")

    def send(self, message):
        if isinstance(message, dict):
            write_event(Event(message["type"], {key: message[key] for key in message if key != "type"}), self._stream)
        else:
            self.socket.sendall(message.encode() if isinstance(message, str) else message)

    def say(self, audio, size, rate):
        for piece in pieces(audio, size):
            write_event(Event("audio-chunk", {"rate": rate, "width": 2, "channels": 1}, piece), self._stream)

    def close(self):
        with suppress(OSError), self.socket:
            self._stream.close()

    def receive(self):
        """Return the next event except chunks. Their texts are the transcript; `sound` is of their audio."""
        text, sound = "", b""
        while (event := read_event(self._stream)) and event.type in ("transcript-chunk", "audio-chunk"):
            text, sound = text + event.data.get("text", ""), sound + (event.payload or b"")
        if event is None:
            raise ConnectionClosed(None, None)
        found = {"type": event.type, **{name: value for name, value in event.data.items() if value is not None}}
        assert event.type != "transcript" or text == found["text"]
        return found | ({"sound": hashlib.sha256(sound).hexdigest()} if sound else {})


class _Events(ExitStack):
    """The events of a shared session."""

    def __init__(self, server, path, headers):
        super().__init__()
        self._events = self.enter_context(reader(server, {"events": path}, **headers))

    def receive(self):
        return next(self._events)


class _Conversation:
    """`names`: the values that the conversation has so far. `stack`: closes the connections."""

    def __init__(self, server, protocol, stack, **names):
        self.server, self.protocol, self.names, self.lines = server, protocol, names, {}
        self._stack = stack

    def play(self, step):
        line = self.lines.get(step.get("by"))
        match step:
            case {"open": query}:
                self._open(step, self._filled(query))
            case {"request": [method, path], "status": status}:
                more = {"json": step.get("body"), "headers": step.get("headers")}
                answer = self.server.client.request(method, self._filled(path), **more)
                assert answer.status_code == status, answer.text
                if "has" in step:
                    self._check(step["has"], answer.json(), whole=False)
            case {"read": path}:
                self.lines[step.get("by")] = _Events(
                    self.server, self._filled(path), self._filled(step.get("headers", {}))
                )
            case {"audio": parts}:
                rate = step.get("rate", line.rate)
                line.say(_sound(parts, rate, step.get("encoding")), step.get("size", 8_000), rate)
            case {"send": str(text)}:
                line.send(text * step.get("times", 1))
            case {"send": message}:
                line.send(self._filled(message))
            case {"binary": content}:
                line.send(bytes.fromhex(content) * step.get("times", 1))
            case {"get": wanted}:
                self._check(wanted, line.receive())
            case {"has": wanted}:
                self._check(wanted, line.receive(), whole=False)
            case {"until": wanted}:
                self._until(line, wanted)
            case {"closed": code}:
                with suppress(ConnectionClosed):
                    while True:
                        line.receive()
                assert code == getattr(line.socket, "close_code", None)
            case {"cut": _}:
                line.socket.socket.shutdown(socket.SHUT_RDWR)
            case {"leave": _}:
                line.close()
            case _:
                raise ValueError(step)

    def _open(self, step, query):
        more = {name: self._filled(step[name]) for name in ("key", "protocols") if name in step}
        if "refused" not in step:
            line = self._add(step, self.protocol(self.server, query, **more))
            assert getattr(line.socket, "subprotocol", None) == step.get("selected")
            return
        with pytest.raises(InvalidStatus) as refused:
            self.protocol(self.server, query, **more)
        assert refused.value.response.status_code == step["refused"]
        self._check(step["has"], json.loads(refused.value.response.body), whole=False)

    def _add(self, step, line):
        self._stack.callback(line.close)
        self.lines[step.get("by")] = line
        return line

    def _until(self, line, wanted):
        while True:
            message, before = line.receive(), dict(self.names)
            with suppress(AssertionError):
                return self._check(wanted, message, whole=False)
            self.names = before
            assert not {message.get("type"), *message} & {"error", "Error"}, message

    def _filled(self, value):
        text = json.dumps(value)
        for name, found in self.names.items():
            text = text.replace(f'"${name}"', json.dumps(found))
        return json.loads(Template(text).safe_substitute(self.names))

    def _check(self, wanted, found, *, whole=True):
        where = f"{wanted!r} is not {found!r}"
        match wanted:
            case {"words": text, "errors": most}:
                assert recordings.word_errors(self._filled(text).split(), found.split()) <= most, where
            case dict():
                assert isinstance(found, dict), where
                assert wanted.keys() == found.keys() if whole else wanted.keys() <= found.keys(), where
                for key, value in wanted.items():
                    self._check(value, found[key], whole=whole)
            case list():
                assert len(wanted) == len(found), where
                for one, other in zip(wanted, found, strict=True):
                    self._check(one, other, whole=whole)
            case str() if re.fullmatch(r"\$\w+", wanted):
                assert self.names.setdefault(wanted[1:], found) == found, where
            case str() if re.fullmatch("/.*/", wanted):
                assert re.search(wanted[1:-1], found if isinstance(found, str) else json.dumps(found)), where
            case float():
                assert found == pytest.approx(wanted, abs=0.1), where
            case _:
                assert (self._filled(wanted), type(wanted)) == (found, type(found)), where


def _sound(parts, rate, encoding):
    """Return audio: parts are the bundled recording, `[from_s, to_s]` of it, and seconds of silence."""
    spoken = recordings.samples()
    made = [np.zeros(0, np.int16)]
    for part in parts:
        if isinstance(part, int | float):
            made.append(np.zeros(int(16_000 * part), np.int16))
        else:
            begin_s, end_s = part if isinstance(part, list) else (0, len(spoken))
            made.append(spoken[int(16_000 * begin_s) : int(16_000 * end_s)])
    pcm = np.concatenate(made)
    pcm = pcm if rate == 16_000 else soxr.resample(pcm, 16_000, rate).astype(np.int16)
    if encoding == "pcm_f32le":
        return (pcm / 32_768).astype("<f4").tobytes()
    return recordings.companded(pcm, _LAWS[encoding]) if encoding else pcm.astype("<i2").tobytes()


@contextmanager
def _bridged(server, language="", token=None):
    """Serve a bridge in front of the server."""
    with Bridge("127.0.0.1", 0, BridgeTarget(server.base, server.key if token is None else token, language)) as bridge:
        thread = threading.Thread(target=bridge.serve_forever, args=[0.01])
        thread.start()
        server.bridge_port = bridge.port
        try:
            yield
        finally:
            bridge.shutdown()
            thread.join()


_PROTOCOLS = {
    "live": (_Live, "live_server"),
    "sharing": (_Live, "live_server"),
    "realtime": (_Realtime, "realtime_server"),
    "deepgram": (_Deepgram, "server"),
    "wyoming": (_Wyoming, "live_server"),
}


def _recorded():
    for path in sorted((Path(__file__).parent / "conversations").glob("*/*.yaml")):
        about, *steps = yaml.safe_load(path.read_text("utf-8"))
        protocol, marks = path.parent.name, about.get("marks", [])
        if "settings" not in about and protocol != "wyoming":
            marks.append("demo_server")
        marked = [getattr(pytest.mark, name) for name in marks]
        yield pytest.param(protocol, about, steps, marks=marked, id=f"{protocol}-{path.stem}")


@pytest.mark.websocket
@pytest.mark.parametrize(("protocol", "about", "steps"), _recorded())
def test_the_server_answers_as_recorded(request, said, protocol, about, steps):
    """`about` of each file has its claim."""
    kind, fixture = _PROTOCOLS[protocol]
    with ExitStack() as stack:
        if "settings" in about:
            server = stack.enter_context(request.getfixturevalue("start")(**about["settings"]))
        else:
            server = request.getfixturevalue(fixture)
        if protocol == "wyoming":
            stack.enter_context(_bridged(server, **about.get("bridge", {})))
        conversation = _Conversation(server, kind, stack, said=said)
        for step in steps:
            try:
                conversation.play(step)
            except Exception as error:
                error.add_note(f"in step {step}")
                raise
