"""Arguments to requests."""

import pytest

from asr_server.cli import requests
from asr_server.cli.formats import Format
from asr_server.cli.main import build_parser
from asr_server.recordings.requests import ChannelMode, ResponseFormat, SubtitleRequest, TranslationRequest
from asr_server.subtitle.cues import SpeakerStyle

WORDS = {"glossary": {"a": "b"}, "model": "m", "hotwords": ("x",)}
TRANSLATION = TranslationRequest(language="de", bilingual=True, response_format=ResponseFormat.SRT, **WORDS)


def _request(line, wanted=Format.SRT):
    make = requests.transcription_request if line.startswith("transcribe") else requests.cue_request
    return make(build_parser(line.split()[0]).parse_args(line.split()), [wanted])


@pytest.mark.parametrize(
    ("line", "request_"),
    [
        ("subtitles a.wav", SubtitleRequest(format="srt")),
        ("subtitles a.wav --mode fast -l de", SubtitleRequest(language="German", mode="fast", format="srt")),
        ("subtitles a.wav --to German --bilingual --term a=b --model m --hotword x", TRANSLATION),
        ("translate a.wav --to de --bilingual --term a=b --model m --hotword x", TRANSLATION),
        (
            "subtitles a.wav --local --model demo --prompt p --max-line-chars 30 --max-lines 1",
            SubtitleRequest(prompt="p", max_line_chars=30, max_lines=1, format="srt"),
        ),
    ],
)
def test_arguments_become_the_request(line, request_):
    """A target language makes it a translation. With --local the model is a setting of the worker."""
    assert _request(line) == request_


def test_speakers_are_told_apart_where_they_are_asked_for(tmp_path):
    """The option asks for it, or the format that is made of them."""
    clip = tmp_path / "ann=.wav"
    clip.write_bytes(b"RIFF\xff")
    assert not _request("transcribe a.wav", Format.VERBOSE_JSON).speakers
    assert _request("transcribe a.wav", Format.DIARIZED_JSON).speakers
    stated = f"--speakers --max-speakers 3 --channel-mode mix --known-speaker Ann={clip}"
    request = _request(f"transcribe a.wav {stated}", Format.VERBOSE_JSON)
    assert (request.speakers, request.min_speakers, request.max_speakers) == (True, None, 3)
    assert (request.known_speaker_names, request.known_speaker_references) == (("Ann",), (b"RIFF\xff",))
    assert request.channel_mode is ChannelMode.MIX
    request = _request("subtitles a.wav --speakers --num-speakers 2 --speaker-style dash")
    assert (request.speakers, request.num_speakers, request.channel_mode) == (True, 2, ChannelMode.MIX)
    assert request.speaker_style is SpeakerStyle.DASH
