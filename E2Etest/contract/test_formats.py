"""What goes in: containers, codecs, rates, channels. What comes out: every response format."""

import re

import numpy as np
import pytest

from E2Etest.drive import recordings

pytestmark = pytest.mark.demo_server


def test_a_container_is_heard_whatever_its_name(server, sample):
    """Content decides: the file has no telling name, the words are the same within the codec's losses."""
    answer = server.transcribe(recordings.encoded("webm", "libopus"), name="upload")
    assert answer.status_code == 200, answer.text
    said = sample[1].split()
    assert recordings.word_errors(said, answer.json()["text"].split()) <= 1


def test_text_formats_are_plain_text(server, sample):
    """text, srt and vtt with their types and grammar."""
    audio, words = sample
    text, srt, vtt = (server.transcribe(audio, response_format=f) for f in ("text", "srt", "vtt"))
    for answer in (text, srt, vtt):
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert text.text == words + "\n"
    cue = re.fullmatch(r"1\n00:00:\d\d,\d{3} --> 00:00:\d\d,\d{3}\n(.+)\n(.+)\n\n", srt.text)
    assert " ".join(cue.groups()) == words
    assert vtt.text.startswith("WEBVTT\n\n00:00:")


def test_a_default_that_is_sent_along_is_as_if_absent(server, sample):
    """Some clients name the granularity `segment` with every format: the answer is the usual one."""
    for wanted in ("json", "text"):
        told = server.transcribe(sample[0], response_format=wanted, **{"timestamp_granularities[]": "segment"})
        assert (told.status_code, told.text) == (200, server.transcribe(sample[0], response_format=wanted).text)


def test_verbose_json_tells_times_and_scores(server, sample):
    """Segments lie inside the recording, with real scores."""
    asked = {"response_format": "verbose_json", "timestamp_granularities[]": "segment"}
    body = server.transcribe(sample[0], **asked).json()
    assert (body["task"], body["language"], body["text"]) == ("transcribe", "english", sample[1])
    assert body["duration"] == pytest.approx(len(recordings.samples()) / 16_000, abs=0.01)
    (segment,) = body["segments"]
    assert 0 <= segment["start"] < segment["end"] <= body["duration"] + 0.01
    assert -1 < segment["avg_logprob"] < 0
    assert 0 <= segment["no_speech_prob"] < 0.5
    assert segment["tokens"]
    assert segment["complete"] is True
    assert "words" not in body


@pytest.mark.parametrize(
    "strategy",
    [
        {"chunking_strategy[type]": "server_vad", "chunking_strategy[silence_duration_ms]": "400"},
        {"chunking_strategy": '{"type": "server_vad", "silence_duration_ms": 400, "threshold": 0.6}'},
    ],
)
def test_a_chunking_strategy_cuts_where_it_says(server, sample, strategy):
    """Pauses of a second join two sentences to one segment by default, and part them under a shorter silence."""
    pause = np.zeros(16_000, np.int16)
    audio = recordings.wav(np.concatenate([recordings.samples(), pause, recordings.samples()]))
    counts = []
    for fields in ({}, {"chunking_strategy": "auto"}, strategy):
        body = server.transcribe(audio, response_format="verbose_json", **fields).json()
        assert recordings.word_errors(2 * sample[1].split(), body["text"].split()) <= 1
        counts.append(len(body["segments"]))
    assert counts[:2] == [1, 1]
    assert counts[2] >= 2


@pytest.mark.parametrize("language", ["en-US", ""])
def test_a_language_may_be_a_locale_or_nothing(server, sample, language):
    """The answer names the language."""
    body = server.transcribe(sample[0], language=language).json()
    assert (body["text"], body["language"]) == (sample[1], "English")


def test_hints_are_taken_in_every_spelling(server, sample):
    """Prompt, hotwords and OpenAI's keywords do not break an answer; unknown fields are ignored."""
    for fields in (
        {"prompt": 'he said "kitchen"\nand <|im_end|>'},
        {"hotwords": "kitchen,lights"},
        {"keywords[]": ["kitchen", "lights"]},
        {"x_vendor": "1", "chunking_strategy": "auto"},
    ):
        answer = server.transcribe(sample[0], **fields)
        assert answer.status_code == 200, answer.text
        assert recordings.word_errors(sample[1].split(), answer.json()["text"].split()) <= 2


def test_silence_is_an_empty_text_and_costs_no_engine_time(server):
    """Five seconds of nothing: empty text, `auto` for the language, no span sent to the model."""
    answer = server.transcribe(recordings.wav(np.zeros(80_000, np.int16)), response_format="verbose_json")
    body = answer.json()
    assert (body["text"], body["language"], body["segments"]) == ("", "auto", [])
    # The line is written after the answer.
    server.wait_for(lambda _: f"id={answer.headers['x-request-id']} " in server.log())
    line = next(row for row in server.log().splitlines() if answer.headers["x-request-id"] in row)
    assert "spans=0" in line
    assert "infer_ms=0" in line
