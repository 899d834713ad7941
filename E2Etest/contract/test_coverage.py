"""Answers tell what became of every second of a recording."""

import io
import json
import re
from itertools import pairwise

import av
import numpy as np
import pytest

from asr_server_fake.script import FakeScript, Fault, Rule
from E2Etest import recordings

SECOND = 16_000


@pytest.fixture(scope="module")
def server(start):
    """The defaults, so that the engine's script can be replaced."""
    with start() as server:
        yield server


@pytest.fixture(scope="module")
def recording():
    """5 s of noise as loud as speech, the sample, and 5 s of a quiet room."""
    noise = np.random.default_rng(0).normal(0, 1, 10 * SECOND)
    loud, quiet = 3_000 * noise[: 5 * SECOND], 10 * noise[5 * SECOND :]
    return np.concatenate([loud, recordings.samples(), quiet]).astype(np.int16)


def checked(coverage, duration):
    """Return the kinds of the parts. They follow each other, and add up to the duration to the millisecond."""
    parts = coverage["parts"]
    edges = [round(1000 * at) for part in parts for at in (part["start"], part["end"])]
    assert edges[0] == 0
    assert edges[-1] == round(1000 * duration)
    assert all(end == start for end, start in zip(edges[1::2], edges[2::2], strict=False))
    assert all(start < end for start, end in zip(edges[::2], edges[1::2], strict=True))
    for kind in ("words", "silence", "sound", "unheard"):
        lengths = [
            end - start for start, end, part in zip(edges[::2], edges[1::2], parts, strict=True) if part["kind"] == kind
        ]
        assert round(1000 * coverage[kind]) == sum(lengths)
    assert all((a["kind"], a.get("reason")) != (b["kind"], b.get("reason")) for a, b in pairwise(parts))
    return [part["kind"] for part in parts]


def test_every_answer_with_room_for_it_tells_what_was_not_heard(server, recording):
    """verbose_json, its stream and the server's own stream; the log has the seconds."""
    audio = recordings.wav(recording)
    body = server.transcribe(audio, response_format="verbose_json").json()
    coverage = body["coverage"]
    assert checked(coverage, body["duration"]) == ["unheard", "words", "silence"]
    unheard, _, silence = coverage["parts"]
    assert unheard["reason"] == "detector"
    assert 4 < unheard["end"] <= 5
    assert silence["confidence"] > 0.9
    events = server.transcribe(audio, response_format="verbose_json", stream="true").text.splitlines()
    (done,) = [json.loads(line[6:]) for line in events if "text.done" in line]
    native = server.client.post("/v1/audio/transcriptions/stream", files={"file": audio}).text.splitlines()
    (whole,) = [json.loads(line[6:]) for line in native if '"is_final": true' in line]
    assert done["coverage"] == whole["coverage"] == coverage
    assert f"unheard_s={coverage['unheard']}" in server.log()


def test_strict_makes_what_was_not_heard_an_error(server, recording):
    """The answer, the stream after its text and the job are the error; a recording that was heard is answered."""
    audio = recordings.wav(recording)
    refused = server.transcribe(audio, strict="true")
    assert refused.status_code == 422
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == ("incomplete_transcript", "strict")
    assert re.search(
        r"[45]\.\d+ s of the recording were not heard, the first from 0\.0 to [45]\.\d+ s", error["message"]
    )
    events = server.transcribe(audio, strict="true", stream="true").text.splitlines()
    assert "transcript.text.delta" in events[0]
    assert json.loads(events[-2][6:])["error"] == error
    form = {"files": {"file": audio}, "data": {"strict": "true"}}
    job = server.client.post("/v1/jobs", **form).json()["id"]
    with server.client.stream("GET", f"/v1/jobs/{job}/events") as updates:
        ended = [line for line in updates.iter_lines() if line][-1]
    assert json.loads(ended[6:])["error"]["code"] == "incomplete_transcript"
    assert server.transcribe(recordings.wav(recording[5 * SECOND :]), strict="true").status_code == 200


def test_a_span_that_fails_is_left_out_where_the_answer_tells_it(server):
    """verbose_json, its stream, the server's own stream and a job give the other spans; other answers are the error."""
    room = np.random.default_rng(0).normal(0, 10, 5 * SECOND).astype(np.int16)
    audio = recordings.wav(np.concatenate([recordings.samples(), room, recordings.samples()]))

    def fail():
        server.replace_script(FakeScript(rules=(Rule(fault=Fault.RAISE, times=1),)))

    try:
        fail()
        body = server.transcribe(audio, response_format="verbose_json").json()
        assert checked(body["coverage"], body["duration"]) == ["unheard", "silence", "words"]
        assert body["text"] == recordings.sample()[1]
        failed = {name: body["coverage"]["parts"][0][name] for name in ("start", "end", "reason")}
        assert failed["reason"] == "failed"
        fail()
        events = server.transcribe(audio, response_format="verbose_json", stream="true").text.splitlines()
        found = [json.loads(line[6:]) for line in events if line.startswith("data: {")]
        assert found[0] == {"type": "transcript.text.unheard", **failed}
        assert found[-1]["coverage"] == body["coverage"]
        fail()
        native = server.client.post("/v1/audio/transcriptions/stream", files={"file": audio}).text.splitlines()
        _, first, _, whole, _ = [json.loads(line[6:]) for line in native if line]
        assert {name: first[name] for name in failed} == failed
        assert (first["text"], first["complete"], whole["complete"]) == ("", False, False)
        fail()
        form = {"files": {"file": audio}, "data": {"response_format": "verbose_json"}}
        job = server.client.post("/v1/jobs", **form).json()["id"]
        with server.client.stream("GET", f"/v1/jobs/{job}/events") as updates:
            list(updates.iter_lines())
        assert server.client.get(f"/v1/jobs/{job}/result").json()["coverage"] == body["coverage"]
        later = [server.client.get(f"/v1/jobs/{job}/result?response_format={name}") for name in ("verbose_json", "srt")]
        assert [answer.status_code for answer in later] == [200, 400]
        for fields in ({}, {"response_format": "srt"}, {"response_format": "diarized_json"}, {"stream": "true"}):
            fail()
            assert '"transcription_failed"' in server.transcribe(audio, **fields).text
    finally:
        server.replace_script(FakeScript())


def test_the_model_may_be_given_more_than_speech(server, recording):
    """With advise what is loud, in which it hears nothing here; without the detector everything."""
    audio = recordings.wav(recording)
    found = {}
    for vad in ("advise", "off"):
        body = server.transcribe(audio, response_format="verbose_json", vad=vad, strict="true").json()
        found[vad] = checked(body["coverage"], body["duration"])
    assert found == {"advise": ["sound", "words", "silence"], "off": ["words"]}
    assert server.transcribe(audio, vad="always").json()["error"]["param"] == "vad"


def test_damage_of_a_file_is_unheard_where_its_times_show_it(server):
    """Packets of an MP4 that cannot be decoded are silence, and no words are known of them."""
    content = bytearray(recordings.encoded("mp4", "aac", np.concatenate(3 * [recordings.samples()])))
    with av.open(io.BytesIO(bytes(content))) as container:
        packets = [(p.pos, p.size, float(p.pts * p.time_base)) for p in container.demux(audio=0) if p.size]
    for pos, size, starts_s in packets:
        if 1.0 <= starts_s < 2.5:
            content[pos : pos + size] = bytes(size)
    body = server.transcribe(bytes(content), response_format="verbose_json").json()
    checked(body["coverage"], body["duration"])
    (damaged,) = [part for part in body["coverage"]["parts"] if part.get("reason") == "damaged"]
    assert (damaged["start"], damaged["end"]) == pytest.approx((1.0, 2.5), abs=0.1)
    assert server.transcribe(bytes(content), strict="true").json()["error"]["code"] == "incomplete_transcript"
