"""What goes in: containers, codecs, rates, channels. What comes out: every response format."""

import re

import numpy as np
import pytest
import soxr

from E2Etest import recordings

pytestmark = pytest.mark.demo_server

ENCODED = {
    "flac": ("flac", "flac"),
    "mp3": ("mp3", "libmp3lame"),
    "ogg-opus": ("ogg", "libopus"),
    "m4a": ("ipod", "aac"),
    "mp4": ("mp4", "aac"),
    "mov": ("mov", "aac"),
    "aac": ("adts", "aac"),
    "webm": ("webm", "libopus"),
    "mkv": ("matroska", "pcm_s16le"),
    "aiff": ("aiff", "pcm_s16be"),
}


def _pcm(dtype, scale):
    return np.round(recordings.samples() / 32768 * scale).astype(dtype)


def _s24(values):
    return b"".join(int(v).to_bytes(3, "little", signed=True) for v in values)


def _wavs():
    pcm = recordings.samples()
    unit = pcm / 32768
    yield "s16", recordings.wav(pcm)
    yield "s16-stereo", recordings.wav(np.repeat(pcm, 2), channels=2)
    yield "s24", recordings.riff(_s24(_pcm("i4", 2**23 - 1)), tag=1, rate=16_000, channels=1, bits=24)
    yield "s32", recordings.riff(_pcm("<i4", 2**31 - 1).tobytes(), tag=1, rate=16_000, channels=1, bits=32)
    yield "u8", recordings.riff((unit * 127 + 128).astype("u1").tobytes(), tag=1, rate=16_000, channels=1, bits=8)
    yield "f32", recordings.riff(unit.astype("<f4").tobytes(), tag=3, rate=16_000, channels=1, bits=32)
    yield "f64", recordings.riff(unit.astype("<f8").tobytes(), tag=3, rate=16_000, channels=1, bits=64)
    yield "loud-f32", recordings.riff((unit * 40).astype("<f4").tobytes(), tag=3, rate=16_000, channels=1, bits=32)


@pytest.mark.parametrize(("name", "audio"), list(_wavs()), ids=lambda v: v if isinstance(v, str) else "")
def test_every_wav_is_heard(server, sample, name, audio):
    """All PCM widths, floats, stereo and floats past full scale give the same words."""
    answer = server.transcribe(audio)
    assert answer.json().get("text") == sample[1], answer.text


@pytest.mark.parametrize("name", ENCODED)
def test_every_container_is_heard_whatever_its_name(server, sample, name):
    """Content decides: the file has no telling name, the words are the same within the codec's losses."""
    answer = server.transcribe(recordings.encoded(*ENCODED[name]), name="upload")
    assert answer.status_code == 200, answer.text
    said = sample[1].split()
    assert recordings.word_errors(said, answer.json()["text"].split()) <= 1


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 96_000])
def test_every_rate_is_heard(server, sample, rate):
    """The same recording at another rate is the same words."""
    audio = recordings.wav(soxr.resample(recordings.samples(), 16_000, rate), rate=rate)
    heard = server.transcribe(audio).json()["text"].split()
    # 8 kHz drops half of the spectrum, which the demonstration model was never taught to do without.
    assert recordings.word_errors(sample[1].split(), heard) <= (3 if rate == 8_000 else 1)


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
    body = server.transcribe(
        sample[0], response_format="verbose_json", **{"timestamp_granularities[]": "segment"}
    ).json()
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


@pytest.mark.parametrize("language", ["en", "en-US", "English", "ENGLISH", "auto", ""])
def test_a_language_in_any_spelling(server, sample, language):
    """Codes, locales, names and nothing."""
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
