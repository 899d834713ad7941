"""Random and mutated frames on both sockets: each connection ends in order, and the next one is served."""

import copy
import json
from contextlib import suppress
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed

from asr_server.net.errors import TABLE
from E2Etest.drive.session import connected
from E2Etest.fuzz.effort import effort

pytestmark = [pytest.mark.websocket, pytest.mark.nightly, pytest.mark.integration, pytest.mark.guarantee("fuzzing")]

TIMEOUT_S = 30
# What a close may say: the codes of the table, and the protocol's own for frames that are none (bad UTF-8, too big).
CODES = {wire.ws_close for wire in TABLE.values()} | {1000, 1002, 1007, 1009}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
NATIVE = [
    {"action": "flush"},
    {"action": "reset"},
    {"action": "config", "language": "en", "use_server_vad": False, "hotwords": ["lights"]},
]
_INPUT = {
    "format": {"type": "audio/pcm", "rate": 24000},
    "turn_detection": {"type": "server_vad", "threshold": 0.5, "silence_duration_ms": 300},
    "transcription": {"model": "whisper-1", "language": "en", "prompt": "x"},
    "noise_reduction": {"type": "near_field"},
}
_SESSION = {"type": "transcription", "audio": {"input": _INPUT}, "include": ["item.input_audio_transcription.logprobs"]}
REALTIME = [
    {"type": "session.update", "session": _SESSION},
    {"type": "input_audio_buffer.append", "audio": "AAAAAAAA"},
    {"type": "input_audio_buffer.commit"},
    {"type": "input_audio_buffer.clear"},
    {"type": "conversation.item.retrieve", "item_id": "item_1"},
    {"type": "conversation.item.delete", "item_id": "item_1"},
]


def _places(value, path=()):
    """Every place in a JSON value, the whole included."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from _places(child, (*path, key))


@st.composite
def messages(draw, valid):
    """A right message with one of its places replaced or removed, as text; or text with a piece changed."""
    message = copy.deepcopy(draw(st.sampled_from(valid)))
    path = draw(st.sampled_from(list(_places(message))[1:]))
    inside = message
    for key in path[:-1]:
        inside = inside[key]
    if draw(st.integers(0, 4)):
        inside[path[-1]] = draw(JSON)
    else:
        del inside[path[-1]]
    text = json.dumps(message)
    if not draw(st.integers(0, 4)):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.text(max_size=5)) + text[at + draw(st.integers(0, 5)) :]
    return text.encode("utf-8", "replace").decode()


def frames(valid):
    """What is sent on one connection."""
    pcm = st.binary(max_size=4_000)
    odd = st.text(max_size=50).map(lambda text: text.encode("utf-8", "replace").decode())
    return st.lists(messages(valid) | pcm | odd | JSON.map(json.dumps), min_size=1, max_size=25)


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("path", "valid", "last", "answer"),
    [
        ("/ws/transcribe", NATIVE, {"action": "ping"}, '"pong"'),
        # An event that does not exist is refused under its id.
        ("/v1/realtime?intent=transcription", REALTIME, {"type": "no.such", "event_id": "the_last"}, '"the_last"'),
    ],
)
def test_frames_on_a_socket(guarded, timed, path, valid, last, answer):
    """Any frames: the last one is answered, or the connection was closed in order."""

    @effort(100)
    @given(frames(valid))
    def check(sent):
        with timed(), connected(guarded, path, key=guarded.key) as socket:
            with suppress(ConnectionClosed):
                for frame in sent:
                    socket.send(frame)
                socket.send(json.dumps(last))
                while answer not in (told := socket.recv(timeout=TIMEOUT_S)):
                    assert '"internal_error"' not in told
                return
            assert socket.close_code in CODES

    check()


@pytest.mark.parametrize("path", ["/ws/transcribe", "/v1/realtime"])
@pytest.mark.timeout(0)
def test_queries_of_the_sockets(guarded, timed, path):
    """Any text for any parameter: a session, an error on the socket, or a refusal."""
    names = ["use_server_vad", "sample_rate", "language", "hotwords", "session_id", "received", "model", "intent"]

    @effort(60)
    @given(st.dictionaries(st.sampled_from(names), st.text(max_size=30), max_size=4))
    def check(query):
        asked = urlencode({n: v.encode("utf-8", "replace") for n, v in query.items()})
        with timed(), connected(guarded, f"{path}?{asked}", key=guarded.key) as socket:
            told = json.loads(socket.recv(timeout=TIMEOUT_S))
            assert told.get("code") != "internal_error"

    check()
