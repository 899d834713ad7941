"""Who said what over HTTP: in every format, whole and streamed, in jobs and translations. The turns are scripted."""

import base64
import json

import numpy as np
import openai
import pytest
from openai.types.audio import TranscriptionDiarized, TranscriptionTextSegmentEvent

from asr_server.subtitle.cues import parse_srt, parse_vtt
from E2Etest.contract.scripted_speakers import ScriptedSpeakers
from E2Etest.contract.test_jobs import events, submit
from E2Etest.drive import recordings

PAUSE_S = 2.5


def _clip(content):
    return "data:audio/wav;base64," + base64.b64encode(content).decode()


CLIP = _clip(recordings.sample()[0])
NAME = "canary, the voice"


@pytest.fixture(scope="module")
def talk():
    """The sample three times with pauses."""
    pause = np.zeros(int(PAUSE_S * 16_000), np.int16)
    return recordings.wav(np.concatenate([part for _ in range(3) for part in (recordings.samples(), pause)]))


@pytest.fixture(scope="module")
def speakers():
    """A says the sample, B the first half of the next one; the rest is of A again."""
    step_s = len(recordings.samples()) / 16_000 + PAUSE_S
    middle_s = step_s + (step_s - PAUSE_S) / 2
    return ScriptedSpeakers([(0, 0.0, step_s), (1, step_s, middle_s), (0, middle_s, 3 * step_s)])


@pytest.fixture(scope="module")
def server(start, speakers, llm):
    """A server for which that is who speaks, and which can translate."""
    with start(speakers=speakers, OPENAI_BASE_URL=llm.base_url, TRANSLATE_MODEL="scripted") as process:
        yield process


@pytest.fixture(autouse=True)
def _is_there_again(speakers):
    speakers.is_lost = False


def _verbose(server, audio, **fields):
    asked = {"response_format": "verbose_json", "speakers": "true", "timestamp_granularities[]": ["segment", "word"]}
    return server.transcribe(audio, **asked, **fields).json()


def test_diarized_json_has_a_segment_for_each_turn(server, talk, sample):
    """Through OpenAI's client, whose types take nothing else; the text is that of every other format."""
    client = openai.OpenAI(base_url=f"{server.base}/v1", api_key="x", max_retries=0, _strict_response_validation=True)
    with client:
        answer = client.audio.transcriptions.create(
            file=("a.wav", talk), model="gpt-4o-transcribe-diarize", response_format="diarized_json"
        )
    assert isinstance(answer, TranscriptionDiarized)
    assert [segment.speaker for segment in answer.segments] == ["A", "B", "A", "A"]
    assert answer.text == server.transcribe(talk).json()["text"]
    assert " ".join(segment.text for segment in answer.segments) == answer.text
    assert [segment.id for segment in answer.segments] == [f"seg_{i}" for i in range(4)]
    assert len(answer.segments[1].text.split()) < len(sample[1].split())


def test_health_says_whether_their_process_is_there(server, speakers, talk):
    """It is started for the first recording whose speakers are asked for, and ends when it is idle."""
    speakers.pid = None
    server.transcribe(talk)
    assert server.health()["speakers_state"] == "unloaded"
    server.transcribe(talk, response_format="diarized_json")
    assert server.health()["speakers_state"] == "loaded"


def test_the_stream_has_deltas_and_then_the_same_segments(server, talk):
    """OpenAI's events, the segments behind the last delta."""
    whole = server.transcribe(talk, response_format="diarized_json").json()
    client = openai.OpenAI(base_url=f"{server.base}/v1", api_key="x", max_retries=0, _strict_response_validation=True)
    with client:
        stream = client.audio.transcriptions.create(
            file=("a.wav", talk), model="whisper-1", response_format="diarized_json", stream=True
        )
        *said, done = list(stream)
    kinds = [event.type.rpartition(".")[2] for event in said]
    assert kinds == sorted(kinds)
    assert set(kinds) == {"delta", "segment"}
    assert "".join(event.delta for event in said if event.type.endswith("delta")) == done.text == whole["text"]
    segments = [event for event in said if isinstance(event, TranscriptionTextSegmentEvent)]
    assert [segment.model_dump() for segment in segments] == whole["segments"]


def test_segments_and_words_state_their_speaker(server, talk):
    """verbose_json, and json with words; without the field nothing does."""
    body = _verbose(server, talk)
    assert [segment["speaker"] for segment in body["segments"]] == ["A", "B", "A", "A"]
    by_word = [word["speaker"] for word in body["words"]]
    by_segment = [s["speaker"] for s in body["segments"] for _ in s["text"].split()]
    assert by_word == by_segment
    words = server.transcribe(talk, speakers="true", return_timestamps="true").json()["words"]
    assert [word["speaker"] for word in words] == by_word
    assert "speaker" not in server.transcribe(talk, response_format="verbose_json").text


def test_text_and_files_of_cues_show_speakers(server, talk, sample):
    """A line for each turn; a cue has one speaker, whom vtt names in a tag and srt where it changes."""
    lines = server.transcribe(talk, response_format="text", speakers="true").text.splitlines()
    assert [line[:3] for line in lines] == ["A: ", "B: ", "A: "]
    assert " ".join(line[3:] for line in lines).split() == 3 * sample[1].split()
    cues = parse_vtt(server.transcribe(talk, response_format="vtt", speakers="true").text)
    assert {cue.speaker for cue in cues} == {"A", "B"}
    file = server.transcribe(talk, response_format="srt", speakers="true").text
    assert [line[:3] for line in file.splitlines() if line[1:3] == ": "] == ["A: ", "B: ", "A: "]
    assert [(cue.start_ms, cue.end_ms) for cue in parse_srt(file)] == [(cue.start_ms, cue.end_ms) for cue in cues]


@pytest.mark.parametrize("style", ["name", "dash", "none"])
def test_subtitles_in_every_style(server, talk, style):
    """All words are there; names and dashes only where they were asked for."""
    fields = {"format": "srt", "speakers": "true", "speaker_style": style, "max_line_chars": "60"}
    file = server.client.post("/v1/audio/subtitles", files={"file": ("a.wav", talk)}, data=fields).text
    assert ("A: " in file) is (style == "name")
    assert ("\n- " in file) is (style == "dash")


def test_native_events_have_segments_at_once_and_again_with_speakers(server, talk):
    """Both times their texts join to the whole."""
    form = {"files": {"file": ("a.wav", talk)}, "data": {"speakers": "true"}}
    answer = server.client.post("/v1/audio/transcriptions/stream", **form).text
    chunks = [json.loads(line[6:]) for line in answer.splitlines() if "chunk_index" in line]
    *said, whole = chunks
    first = [chunk for chunk in said if "speaker" not in chunk]
    labelled = said[len(first) :]
    assert len(first) == 3
    assert [chunk["speaker"] for chunk in labelled] == ["A", "B", "A", "A"]
    assert "".join(chunk["text"] for chunk in first) == whole["text"]
    assert "".join(chunk["text"] for chunk in labelled) == whole["text"]


def test_the_number_of_speakers_is_the_callers(server, talk):
    """Who says that there is one gets one."""
    for stated in ({"num_speakers": "1"}, {"max_speakers": "1"}):
        assert {segment["speaker"] for segment in _verbose(server, talk, **stated)["segments"]} == {"A"}


def test_a_job_gives_what_the_request_gives(server, talk):
    """Also one that names a voice, whose recording is a file of the job until its end."""
    named = {"known_speaker_names[]": NAME, "known_speaker_references[]": CLIP}
    job = submit(server, talk, response_format="diarized_json", **named)
    assert events(server, job["id"])[-1]["status"] == "succeeded"
    result = server.client.get(f"/v1/jobs/{job['id']}/result").json()
    assert result["segments"] == server.transcribe(talk, response_format="diarized_json", **named).json()["segments"]
    assert {segment["speaker"] for segment in result["segments"]} == {NAME, "A"}
    left = {path.name for path in (server.state / "jobs").glob(f"{job['id']}.*")}
    assert left == {f"{job['id']}.result", f"{job['id']}.transcript"}


def test_translated_cues_keep_their_speakers(server, talk):
    """The same times and names, in another language."""
    form = {
        "files": {"file": ("a.wav", talk)},
        "data": {"language": "de", "response_format": "vtt", "speakers": "true"},
    }
    translated = parse_vtt(server.client.post("/v1/audio/translations", **form).text)
    source = parse_vtt(server.transcribe(talk, response_format="vtt", speakers="true").text)
    assert [(cue.start_ms, cue.speaker) for cue in translated] == [(cue.start_ms, cue.speaker) for cue in source]
    assert [cue.text for cue in translated] != [cue.text for cue in source]


def test_a_lost_process_is_an_error_that_says_so(server, speakers, talk):
    """Before the first event a status, in a stream an event behind the text."""
    speakers.is_lost = True
    answer = server.transcribe(talk, response_format="diarized_json")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "speakers_unavailable")
    lines = server.transcribe(talk, response_format="diarized_json", stream="true").text.split("\n\n")
    assert "transcript.text.delta" in lines[0]
    assert json.loads(lines[-2][6:])["error"]["code"] == "speakers_unavailable"
    assert server.transcribe(talk).status_code == 200


@pytest.mark.parametrize(
    ("clip", "code"),
    [
        (_clip(recordings.wav(np.zeros(16_000, np.int16))), "invalid_reference"),
        (_clip(b"%PDF-1.7 " + bytes(5000)), "invalid_audio"),
        ("https://example.com/voice.wav", "invalid_value"),
        ("data:audio/wav;base64,!!!!", "invalid_value"),
    ],
    ids=["too short", "no sound", "an address", "no base64"],
)
def test_a_reference_that_is_no_voice_is_refused(server, talk, clip, code):
    """The error names the reason and the field."""
    named = {"known_speaker_names[]": NAME, "known_speaker_references[]": clip}
    answer = server.transcribe(talk, response_format="diarized_json", **named)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, code, "known_speaker_references")


def test_a_server_that_does_not_tell_speakers_apart_says_so(start, talk):
    """Before the recording is decoded, and for jobs before they are taken; also where only the names need voices."""
    with start(SPEAKERS="off") as without:
        split = {"channel_mode": "split", "known_speaker_names[]": NAME, "known_speaker_references[]": CLIP}
        for path, fields in (("/v1/audio/transcriptions", {}), ("/v1/jobs", {}), ("/v1/audio/transcriptions", split)):
            data = {"response_format": "diarized_json", **fields}
            error = without.client.post(path, files={"file": ("a.wav", talk)}, data=data).json()["error"]
            assert (error["code"], error["param"]) == ("unsupported_value", "speakers")
            assert "SPEAKERS=off" in error["message"]
