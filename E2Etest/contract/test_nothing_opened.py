"""No address and no path that a caller names is ever opened: a port and a file watch, and stay untouched."""

import json
import socket
import time
from contextlib import suppress
from urllib.parse import quote

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from E2Etest.contract.canary import watching
from E2Etest.drive import recordings
from E2Etest.drive.session import connected

pytestmark = [pytest.mark.guarantee("nothing-opened")]

WORD = "kitchen"  # of the recording in the canary file


@pytest.fixture(scope="module")
def canary(tmp_path_factory):
    with watching(tmp_path_factory.mktemp("canary")) as found:
        yield found


@pytest.fixture(scope="module")
def schema(guarded):
    """The routes as the server describes them, so that a new one is tried too."""
    return guarded.client.get("/openapi.json").json()


def _forms(schema):
    """Every route that takes a form, with its text fields."""
    for path, operations in schema["paths"].items():
        body = operations.get("post", {}).get("requestBody", {}).get("content", {}).get("multipart/form-data")
        if body:
            form = body["schema"]
            form = schema["components"]["schemas"][form["$ref"].rpartition("/")[2]] if "$ref" in form else form
            yield path, sorted(set(form["properties"]) - {"file", "model"})


def _checked(canary, answer):
    assert answer.status_code < 500, answer.text
    assert WORD not in answer.text
    assert canary.touched == []


def test_the_canary_sings(tmp_path):
    """A connection, a packet and an opening are noted: otherwise the tests below would show nothing."""
    with watching(tmp_path) as canary, socket.socket(type=socket.SOCK_DGRAM) as packet:
        socket.create_connection(("127.0.0.1", canary.port)).close()
        packet.sendto(b"x", ("127.0.0.1", canary.port))
        canary.path.read_bytes()
        time.sleep(0.2)
        assert sorted(canary.touched) == ["file", "tcp", "udp"]
        assert len(set(canary.payloads())) >= 30


@pytest.mark.slow("sends every form with each kind of address")
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["some", "every"])
def test_text_fields_of_every_form(guarded, canary, schema, note, every):
    """Each payload in each text field of each route that takes a recording, as the file's name, and in its place.
    Without `every`, each payload is in one field and each field has one payload or more."""
    forms, audio = list(_forms(schema)), recordings.wav(np.zeros(8_000, np.int16))
    assert {"/v1/audio/transcriptions", "/v1/jobs"} <= {path for path, _ in forms}
    for path, fields in forms:
        names = [*fields, "url", "model"]
        for number, payload in enumerate(canary.payloads()):
            for name in names if every else [names[number % len(names)]]:
                form = {"model": "demo", name: payload}
                _checked(canary, guarded.client.post(path, files={"file": (payload, audio)}, data=form))
            _checked(canary, guarded.client.post(path, files={"x": b""}, data={"model": "demo", "file": payload}))
    fields = sum(len(fields) + 3 for _, fields in forms)
    note(f"{len(set(canary.payloads()))} payloads in {fields} fields of {len(forms)} forms, file names included")


@pytest.mark.slow("sends every form with each kind of address")
def test_parts_of_addresses(guarded, canary, schema):
    """Each payload as a job's id, a model's name, a path; as it is and percent-encoded."""
    templates = [(path, verb) for path, verbs in schema["paths"].items() if "{" in path for verb in verbs]
    assert ("/v1/jobs/{job_id}/result", "get") in templates
    for payload in canary.payloads():
        for path, verb in templates:
            before, _, rest = path.partition("{")
            after = rest.partition("}")[2]
            _checked(canary, guarded.client.request(verb, before + quote(payload, safe="") + after))
    for payload in canary.payloads()[:6]:
        for root in ("/", "/web/", "/static-offline-docs/", "/docs/"):
            _checked(canary, guarded.client.get(root + quote(payload, safe="/.\\")))


@pytest.mark.slow("sends every form with each kind of address")
@pytest.mark.parametrize("kind", ["file", "http"])
def test_files_that_point_elsewhere(guarded, canary, note, kind):
    """Playlists, descriptions, an MP4 with its samples elsewhere, addresses in tags: refused, or heard as they are."""
    where = f"http://127.0.0.1:{canary.port}/a.ts"
    tried = 0
    for target in {"file": [str(canary.path), f"file://{canary.path}"], "http": [where, where + ".m3u8"]}[kind]:
        for number, content in enumerate(canary.files(target)):
            for name in ("a.wav", "a.m3u8"):
                tried, answer = tried + 1, guarded.transcribe(content, name=name)
                assert canary.touched == []
                # Two carry the recording themselves.
                assert answer.status_code == 400 or (number in (6, 7) and answer.status_code == 200), answer.text
    note(f"{tried} files that refer to others by {kind}")


@pytest.mark.slow("sends every form with each kind of address")
def test_words_on_the_sockets(guarded, canary):
    """Each payload in every text of both protocols: query, actions, session updates, ids."""
    payloads = canary.payloads()
    for path, frames in (("/ws/transcribe", _native), ("/v1/realtime", _realtime)):
        with connected(guarded, path, key=guarded.key) as socket:
            socket.recv()
            for payload in payloads:
                for frame in frames(payload):
                    socket.send(json.dumps(frame))
                    assert WORD not in socket.recv()
        for payload in payloads:
            query = "&".join(f"{n}={quote(payload, safe='')}" for n in ("session_id", "language", "hotwords", "model"))
            with connected(guarded, f"{path}?{query}", key=guarded.key) as socket, suppress(ConnectionClosed):
                assert WORD not in socket.recv()
    assert canary.touched == []


def _native(payload):
    return [{"action": "config", "language": payload}, {"action": "config", "hotwords": [payload]}, {"action": payload}]


def _realtime(payload):
    said = {"model": payload, "language": payload, "prompt": payload}
    inputs = [{"transcription": {name: value}} for name, value in said.items()] + [{"format": {"type": payload}}]
    yield from ({"type": "session.update", "session": {"type": "transcription", "audio": {"input": i}}} for i in inputs)
    yield {"type": "conversation.item.retrieve", "item_id": payload}
    yield {"type": "input_audio_buffer.append", "audio": payload}
    yield {"type": payload}
