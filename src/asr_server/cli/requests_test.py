"""Arguments to requests."""

import argparse
from functools import partial

import pytest

from asr_server.cli import requests, subtitles, translate
from asr_server.cli.failure import UsageError
from asr_server.cli.formats import Format
from asr_server.cli.transcribe import add_arguments as add_transcribe
from asr_server.recordings.requests import (
    MAX_CLIPS_BYTES,
    ChannelMode,
    ResponseFormat,
    SubtitleRequest,
    TranslationRequest,
)
from asr_server.subtitle.cues import SpeakerStyle


def _transcription(*words, wanted=(Format.VERBOSE_JSON,)):
    parser = argparse.ArgumentParser()
    add_transcribe(parser)
    return requests.transcription_request(parser.parse_args(["a.wav", *words]), wanted)


def _cues(*words, add_arguments=subtitles.add_arguments):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return requests.cue_request(parser.parse_args(["a.wav", *words]), [Format.SRT])


@pytest.mark.parametrize(
    ("words", "request_"),
    [
        ([], SubtitleRequest(format="srt")),
        (["--mode", "fast", "-l", "de"], SubtitleRequest(language="German", mode="fast", format="srt")),
        (
            ["--to", "German", "--bilingual", "--term", "a=b", "--model", "m", "--hotword", "x"],
            TranslationRequest(
                language="de",
                bilingual=True,
                glossary={"a": "b"},
                model="m",
                hotwords=("x",),
                response_format=ResponseFormat.SRT,
            ),
        ),
        (
            ["--local", "--model", "demo", "--prompt", "p", "--max-line-chars", "30", "--max-lines", "1"],
            SubtitleRequest(prompt="p", max_line_chars=30, max_lines=1, format="srt"),
        ),
    ],
)
def test_arguments_become_the_request(words, request_):
    """A target language makes it a translation. With --local the model is a setting of the worker."""
    assert _cues(*words) == request_
    if isinstance(request_, TranslationRequest):
        assert _cues(*words, add_arguments=translate.add_arguments) == request_


def test_speakers_are_told_apart_where_they_are_asked_for(tmp_path):
    """The option asks for it, or the format that is made of them."""
    clip = tmp_path / "ann=.wav"
    clip.write_bytes(b"RIFF\xff")
    assert not _transcription().speakers
    assert _transcription(wanted=[Format.DIARIZED_JSON]).speakers
    stated = ("--speakers", "--max-speakers", "3", "--channel-mode", "mix", "--known-speaker", f"Ann={clip}")
    request = _transcription(*stated)
    assert (request.speakers, request.min_speakers, request.max_speakers) == (True, None, 3)
    assert (request.known_speaker_names, request.known_speaker_references) == (("Ann",), (b"RIFF\xff",))
    assert request.channel_mode is ChannelMode.MIX
    request = _cues("--speakers", "--num-speakers", "2", "--speaker-style", "dash")
    assert (request.speakers, request.num_speakers, request.channel_mode) == (True, 2, ChannelMode.MIX)
    assert request.speaker_style is SpeakerStyle.DASH


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--num-speakers", "2"], "--num-speakers needs --speakers"),
        (["--channel-mode", "split"], "--channel-mode needs --speakers"),
        (["--known-speaker", "Ann=/dev/null"], "--known-speaker needs --speakers"),
        (["--speakers", "--num-speakers", "2", "--min-speakers", "1"], "exact"),
        (["--speakers", "--min-speakers", "3", "--max-speakers", "2"], "more than"),
        (
            ["--speakers", "--channel-mode", "split", "--max-speakers", "2"],
            "--max-speakers contradicts --channel-mode split",
        ),
        (["--speakers"], "json does not show"),  # it has none without words
        (["--speaker-style", "none"], "--speaker-style needs"),
        (["--speakers", "--speaker-style", "dash", "--to", "de"], "not for translations"),  # a cue is one text
        (["--speakers", *["--known-speaker", "a=b"] * 5], "at most 4"),
        (["--speakers", "--known-speaker", "Ann=/nowhere.wav"], "cannot be read"),
        (["--speakers", "--known-speaker", "Ann=/dev/zero"], f"{MAX_CLIPS_BYTES:_} bytes"),  # a device has no end
    ],
)
def test_options_that_contradict_each_other_are_named(words, said):
    """The error comes before anything is sent."""
    wanted = [Format.JSON] if said == "json does not show" else [Format.VERBOSE_JSON]
    made = _cues if "--speaker-style" in words else partial(_transcription, wanted=wanted)
    with pytest.raises(UsageError, match=said):
        made(*words)
