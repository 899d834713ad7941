"""Answers tell what became of every second of a recording."""

import io
import re
from itertools import pairwise

import av
import numpy as np
import pytest

from asr_server_fake.script import Fault, Rule
from E2Etest.drive import recordings
from E2Etest.drive.process import events, refusal

SECOND = 16_000


@pytest.fixture
def server(scripted_server):
    return scripted_server


@pytest.fixture(scope="module")
def recording():
    """5 s of noise as loud as speech, the sample, and 5 s of a quiet room."""
    noise = np.random.default_rng(0).normal(0, 1, 10 * SECOND)
    loud, quiet = 3_000 * noise[: 5 * SECOND], 10 * noise[5 * SECOND :]
    return np.concatenate([loud, recordings.samples(), quiet]).astype(np.int16)


def checked(coverage, duration):
    """Return the kinds of the parts. They follow each other, and add up to the duration to the millisecond."""
    edges = [(round(1000 * part["start"]), round(1000 * part["end"])) for part in coverage["parts"]]
    assert [0, *(end for _, end in edges)] == [*(start for start, _ in edges), round(1000 * duration)]
    assert all(start < end for start, end in edges)
    what = [(part["kind"], part.get("reason")) for part in coverage["parts"]]
    assert all(one != following for one, following in pairwise(what))
    kinds = [kind for kind, _ in what]
    for kind in ("words", "silence", "sound", "unheard"):
        lengths = [end - start for (start, end), found in zip(edges, kinds, strict=True) if found == kind]
        assert round(1000 * coverage[kind]) == sum(lengths)
    return kinds


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
    *_, done = events(server.transcribe(audio, response_format="verbose_json", stream="true"))
    *_, whole, _ = events(server.post("/v1/audio/transcriptions/stream", audio))
    assert done["coverage"] == whole["coverage"] == coverage
    assert f"unheard_s={coverage['unheard']}" in server.log()


def test_strict_makes_what_was_not_heard_an_error(server, recording):
    """The answer, the stream after its text and the job are the error; a recording that was heard is answered."""
    audio = recordings.wav(recording)
    refused = server.transcribe(audio, strict="true")
    assert refusal(refused) == (422, "incomplete_transcript", "strict")
    seconds = r"[45]\.\d+ s of the recording were not heard, the first from 0\.0 to [45]\.\d+ s"
    assert re.search(seconds, refused.text)
    first, *_, last = events(server.transcribe(audio, strict="true", stream="true"))
    assert (first["type"], last["error"]) == ("transcript.text.delta", refused.json()["error"])
    assert server.job(audio, strict="true")[0]["error"]["code"] == "incomplete_transcript"
    assert server.transcribe(recordings.wav(recording[5 * SECOND :]), strict="true").status_code == 200


def test_a_span_that_fails_is_left_out_where_the_answer_tells_it(server, scripted):
    """verbose_json, its stream, the server's own stream and a job give the other spans; other answers are the error."""
    room = np.random.default_rng(0).normal(0, 10, 5 * SECOND).astype(np.int16)
    audio = recordings.wav(np.concatenate([recordings.samples(), room, recordings.samples()]))

    def failing():
        scripted(Rule(fault=Fault.RAISE, times=1))
        return server

    body = failing().transcribe(audio, response_format="verbose_json").json()
    assert checked(body["coverage"], body["duration"]) == ["unheard", "silence", "words"]
    assert body["text"] == recordings.sample()[1]
    failed = {name: body["coverage"]["parts"][0][name] for name in ("start", "end", "reason")}
    assert failed["reason"] == "failed"
    found = events(failing().transcribe(audio, response_format="verbose_json", stream="true"))
    assert found[0] == {"type": "transcript.text.unheard", **failed}
    assert found[-1]["coverage"] == body["coverage"]
    _, first, _, whole, _ = events(failing().post("/v1/audio/transcriptions/stream", audio))
    assert {name: first[name] for name in failed} == failed
    assert (first["text"], first["complete"], whole["complete"]) == ("", False, False)
    _, result = failing().job(audio, response_format="verbose_json")
    assert result.json()["coverage"] == body["coverage"]
    later = [server.client.get(result.url, params={"response_format": name}) for name in ("verbose_json", "srt")]
    assert [answer.status_code for answer in later] == [200, 400]
    for fields in ({}, {"response_format": "srt"}, {"response_format": "diarized_json"}, {"stream": "true"}):
        assert '"transcription_failed"' in failing().transcribe(audio, **fields).text


def test_the_model_may_be_given_more_than_speech(server, recording):
    """With advise what is loud, in which it hears nothing here; without the detector everything."""
    audio = recordings.wav(recording)
    for vad, kinds in {"advise": ["sound", "words", "silence"], "off": ["words"]}.items():
        body = server.transcribe(audio, response_format="verbose_json", vad=vad, strict="true").json()
        assert checked(body["coverage"], body["duration"]) == kinds
    assert refusal(server.transcribe(audio, vad="always"))[2] == "vad"


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
