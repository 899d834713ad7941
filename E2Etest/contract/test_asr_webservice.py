"""The routes of whisper-asr-webservice, as Bazarr calls them: options in the query, samples without a header."""

import json

import numpy as np
import pytest

from E2Etest.drive import recordings
from E2Etest.drive.process import refusal
from E2Etest.drive.session import data


def _asr(server, path="/asr", *, audio=None, **options):
    files = {"audio_file": ("x", recordings.sample()[0] if audio is None else audio)}
    return server.client.post(path, params=options, files=files)


@pytest.mark.parametrize("output", ["txt", "srt", "vtt", "tsv", "json"])
def test_the_answer_is_the_file(server, output):
    """Each with the words that the other routes have, and a name to keep it under."""
    answer = _asr(server, output=output, task="transcribe", vad_filter="false")
    assert answer.status_code == 200
    assert answer.headers["content-disposition"].endswith(f'.{output}"')
    words = server.transcribe(recordings.sample()[0]).json()["text"].split()
    assert all(word in answer.text for word in words)
    if output == "json":
        found = json.loads(answer.text)
        assert found["language"] == "en"
        assert found["segments"][0]["end"] > found["segments"][0]["start"]
    if output == "tsv":
        head, first, *_ = answer.text.splitlines()
        assert head.split("\t") == ["start", "end", "text"]
        start, end, _ = first.split("\t")
        assert 0 <= int(start) < int(end)
    if output == "srt":
        assert answer.text.startswith("1\n00:00:")


def test_samples_without_a_header_are_heard(server):
    """As ffmpeg writes them for Bazarr: 16 bits, one channel, 16 kHz; the same with and without a header."""
    plain = _asr(server, output="txt").text
    assert plain.strip()
    assert _asr(server, output="txt", encode="false", audio=data(recordings.samples())).text == plain


def test_the_language_is_detected(server):
    """Speech has one, and silence has none."""
    found = _asr(server, "/detect-language", encode="false", audio=data(recordings.samples())).json()
    assert found == {"detected_language": "english", "language_code": "en"}
    silence = np.zeros(16_000, "<i2").tobytes()
    assert _asr(server, "/detect-language", encode="false", audio=silence).json()["language_code"] == "und"


def test_what_is_wrong_is_said(server):
    """With the name of the option or the part."""
    assert refusal(_asr(server, output="odt"))[2] == "output"
    assert refusal(_asr(server, language="klingon"))[1] == "unsupported_language"
    assert refusal(_asr(server, task="translate"))[1] == "translation_unavailable"
    answer = server.client.post("/asr", files={"other": ("x", b"x")})
    assert refusal(answer)[::2] == (400, "audio_file")
