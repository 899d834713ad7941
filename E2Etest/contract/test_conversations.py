"""Recorded conversations, one a file in `conversations/PROTOCOL`: what a client sends, and what the server answers.

The first step of a file says what it shows, and what a server of its own has: `settings`, the `script` of its engine,
which a step may replace, and who speaks. `get` has all fields of the next message, `has` some of them, and `until` some
of the first message with these values. A `request` has `files`, a `form`, a `query`, a JSON `body` or other `content`.
Its answer has a `status`, `answers` (headers, or `lacks` some), a `text`, a `sound` (the SHA-256 of its bytes, or of
the audio in its events) or the `events` of a stream, in which deltas that follow each other are one; with `soon` a
later answer may be the right one.
`each` has the rows of a table: every row is a step with the fields that all have and its own. In values
- `$name` is the same throughout; `$said` are the words of the bundled recording; `${a * 9}` is `a` nine times;
- `{all: VALUE}` is a list whose items have the value, `{rising: [NAME]}` one of objects whose numbers never fall;
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
from types import SimpleNamespace
from urllib.parse import urlencode

import pytest
import yaml
from pydantic import TypeAdapter
from websockets.exceptions import ConnectionClosed, InvalidStatus
from wyoming.event import Event, read_event, write_event

from asr_server.features.speakers.diarization.conftest import ToneSpeakers
from asr_server.features.speech_output import speech_socket
from asr_server.features.translation.conftest import right
from asr_server.features.wyoming.wyoming import Bridge, BridgeTarget
from asr_server_fake.script import FakeScript
from E2Etest.contract import sounds
from E2Etest.contract.scripted_speakers import ScriptedSpeakers
from E2Etest.drive import recordings
from E2Etest.drive.process import events, refusal, until
from E2Etest.drive.session import connected, pieces
from E2Etest.live.readers import reader
from E2Etest.realtime.session import FRAME

_WAIT_S = 60
_OPENING = ("key", "path", "protocols", "origin")
_SCRIPT = TypeAdapter(FakeScript)
_OWN = {"settings", "script", "speakers"}  # what a server of its own has


class _Live:
    path, rate = "/ws/transcribe", 16_000

    def __init__(self, server, query, *, key=None, path="", protocols=None, origin=None):
        address = f"{server.live_url.removesuffix(_Live.path)}{path or self.path}?{urlencode(query)}"
        more = {"subprotocols": protocols, "origin": origin, "compression": "deflate"}
        self.socket = connected(server, address, key=server.key if key is None else key, **more)
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


class _Speech(_Live):
    """`sound` is of the binary messages before the end of a text."""

    path = "/ws/speech"

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self._sound = hashlib.sha256()

    def receive(self):
        while isinstance(frame := self.socket.recv(timeout=_WAIT_S), bytes):
            self._sound.update(frame)
        message = json.loads(frame)
        documented = speech_socket.SERVER[message["type"]]  # the reference has each message, and all that it holds
        assert all(f"`{name}`" in documented for name in message if name != "type"), message
        if message["type"] in ("flushed", "cancelled", "done"):
            message["sound"], self._sound = self._sound.hexdigest(), hashlib.sha256()
        return message


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
            case {"request": _, "soon": True}:
                until(lambda: self._passes(step), state=lambda: step)
            case {"request": [method, path]}:
                self._answered(step, self._requested(method, path, step))
            case {"script": rules}:
                self.server.replace_script(_SCRIPT.validate_python(rules))
            case {"asked": wanted}:
                self._check(wanted, [call.content for call in self.llm.calls], whole=False)
            case {"log": pattern}:
                self.server.wait_for(lambda _: re.search(self._filled(pattern)[1:-1], self.server.log()))
            case {"read": path}:
                events_of = reader(self.server, {"events": self._filled(path)}, **self._filled(step.get("headers", {})))
                found = self._stack.enter_context(events_of)
                self.lines[step.get("by")] = SimpleNamespace(receive=lambda: next(found))
            case {"audio": parts}:
                rate = step.get("rate", line.rate)
                line.say(sounds.encoded(parts, rate, step.get("encoding")), step.get("size", 8_000), rate)
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

    def _passes(self, step):
        with suppress(AssertionError):
            self.play(step | {"soon": False})
            return True
        return False

    def _requested(self, method, path, step):
        parts = ("form", "files", "body", "content", "headers")
        given = {name: self._filled(step[name]) for name in parts if name in step}
        files, form = given.get("files", {}), given.get("form", {})
        files = [(name, ("audio.wav", sounds.content(one))) for name, several in files.items() for one in several]
        return self.server.client.request(
            method,
            f"{self.server.base}{self._filled(path)}",
            params=step.get("query"),
            data={name: sounds.url(one) if isinstance(one, dict) else one for name, one in form.items()},
            files=files or None,
            json=given.get("body"),
            content=sounds.content(given["content"]) if "content" in given else None,
            headers=given.get("headers"),
        )

    def _answered(self, step, answer):
        if "error" in step:
            assert list(refusal(answer)) == step["error"], answer.text
        else:
            assert answer.status_code == step.get("status", 200), answer.text
        if "text" in step:
            self._check(step["text"], answer.text)
        if "sound" in step:
            self._check(step["sound"], hashlib.sha256(_audio(answer)).hexdigest())
        if "events" in step:
            self._check(step["events"], _joined(events(answer)), whole=False)
        for name in step.keys() & {"get", "has"}:
            self._check(step[name], answer.json(), whole=name == "get")
        self._check(step.get("answers", {}), dict(answer.headers), whole=False)
        assert not answer.headers.keys() & set(step.get("lacks", []))

    def _open(self, step, query):
        more = {name: self._filled(step[name]) for name in _OPENING if name in step}
        if "refused" not in step:
            self.lines[step.get("by")] = line = self.protocol(self.server, query, **more)
            self._stack.callback(line.close)
            assert getattr(line.socket, "subprotocol", None) == step.get("selected")
            return
        with pytest.raises(InvalidStatus) as refused:
            self.protocol(self.server, query, **more)
        assert refused.value.response.status_code == step["refused"]
        self._check(step.get("answers", {}), dict(refused.value.response.headers.raw_items()), whole=False)
        self._check(step["has"], json.loads(refused.value.response.body), whole=False)

    def _until(self, line, wanted):
        while True:
            message, before = line.receive(), dict(self.names)
            with suppress(AssertionError):
                return self._check(wanted, message, whole=False)
            self.names = before
            assert not {message.get("type"), *message} & {"error", "Error"}, message

    def _filled(self, value):
        text = re.sub(r"\$\{(.+?) \* (\d+)\}", lambda found: found[1] * int(found[2]), json.dumps(value))
        for name, found in self.names.items():
            text = text.replace(f'"${name}"', json.dumps(found))
        return json.loads(Template(text).safe_substitute(self.names))

    def _check(self, wanted, found, *, whole=True):
        where = f"{wanted!r} is not {found!r}"
        match wanted:
            case {"words": text, "errors": most}:
                assert recordings.word_errors(self._filled(text).split(), found.split()) <= most, where
            case {"all": one}:
                assert found, where
                for other in found:
                    self._check(one, other, whole=whole)
            case {"rising": names}:
                numbers = [other[name] for other in found for name in names]
                assert numbers == sorted(numbers) != [], where
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
            case str() if re.fullmatch("(?s)/.*/", wanted):
                text = found if isinstance(found, str) else json.dumps(found)
                assert re.search(self._filled(wanted)[1:-1], text), where
            case float():
                assert found == pytest.approx(wanted, abs=0.1), where
            case _:
                assert (self._filled(wanted), type(wanted)) == (found, type(found)), where


def _audio(answer):
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return answer.content
    return b"".join(base64.b64decode(event["audio"]) for event in events(answer) if "audio" in event)


def _joined(found):
    """Events, in which deltas that follow each other are one."""
    joined = []
    for event in found:
        if "delta" in event and joined and joined[-1].get("type") == event["type"]:
            joined[-1]["delta"] += event["delta"]
        else:
            joined.append(event)
    return joined


@contextmanager
def _bridged(server, language="", token=None):
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
    "openai": (None, "server"),
    "http": (None, "server"),
    "speech": (None, "server"),
    "live": (_Live, "live_server"),
    "sharing": (_Live, "live_server"),
    "realtime": (_Realtime, "realtime_server"),
    "deepgram": (_Deepgram, "server"),
    "wyoming": (_Wyoming, "live_server"),
    "speech_socket": (_Speech, "live_server"),
}


def _recorded():
    for path in sorted((Path(__file__).parent / "conversations").glob("*/*.yaml")):
        about, *steps = yaml.safe_load(path.read_text("utf-8"))
        protocol, marks = path.parent.name, about.get("marks", [])
        if not about.keys() & _OWN and protocol != "wyoming":
            marks.append("demo_server")
        if _PROTOCOLS[protocol][0]:
            marks.append("websocket")
        marked = [getattr(pytest.mark, name) for name in marks]
        rows = [step | row for step in steps for row in step.pop("each", [{}])]
        yield pytest.param(protocol, about, rows, marks=marked, id=f"{protocol}-{path.stem}")


@contextmanager
def _served(request, about, fixture):
    """The shared server, or one with the settings, the script and the speakers of a conversation."""
    if not about.keys() & _OWN:
        yield request.getfixturevalue(fixture)
        return
    options = dict(about.get("settings", {}))
    if "OPENAI_BASE_URL" in options:
        llm = request.getfixturevalue("llm")
        llm.restart(right)
        options["OPENAI_BASE_URL"] = llm.base_url
    if "profanity" in about:
        folder = request.getfixturevalue("tmp_path")
        (folder / "en.txt").write_text(about["profanity"])
        options["PROFANITY_LISTS"] = str(folder)
    if "script" in about:
        path = request.getfixturevalue("tmp_path") / "script.json"
        path.write_text(json.dumps(about["script"]))  # for the processes of the server
        options |= {"script": _SCRIPT.validate_python(about["script"]), "FAKE_ENGINE_SCRIPT": str(path)}
    if "speakers" in about:
        options["speakers"] = ToneSpeakers() if about["speakers"] == "tones" else ScriptedSpeakers(about["speakers"])
    with request.getfixturevalue("start")(**options) as server:
        yield server


@pytest.mark.slow("starts servers of its own and speaks long texts")
@pytest.mark.parametrize(("protocol", "about", "steps"), _recorded())
def test_the_server_answers_as_recorded(request, protocol, about, steps):
    """`about` of each file has its claim."""
    kind, fixture = _PROTOCOLS[protocol]
    said = request.getfixturevalue("said") if kind else recordings.sample()[1]
    with ExitStack() as stack:
        server = stack.enter_context(_served(request, about, fixture))
        if protocol == "wyoming":
            stack.enter_context(_bridged(server, **about.get("bridge", {})))
        conversation = _Conversation(server, kind, stack, said=said, base=server.base)
        if "OPENAI_BASE_URL" in about.get("settings", {}):
            conversation.llm = request.getfixturevalue("llm")
        for step in steps:
            try:
                conversation.play(step)
            except Exception as error:
                error.add_note(f"in step {step}")
                raise
