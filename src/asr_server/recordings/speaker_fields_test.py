"""Fields about speakers: every spelling that clients use, and what contradicts itself or cannot be read."""

import base64
import json

import pytest
from starlette.datastructures import FormData

from asr_server.core.errors import InvalidInput
from asr_server.recordings import forms
from asr_server.recordings.fields import JobForm
from asr_server.recordings.requests import MAX_CLIPS_BYTES, ChannelMode, KnownSpeaker, SpeakerOptions
from asr_server.subtitle.cues import SpeakerStyle

DIARIZED = ("response_format", "diarized_json")
SPEAKERS = ("speakers", "true")
VERBOSE = ("response_format", "verbose_json")


def _url(clip, head="data:audio/wav;base64"):
    return f"{head},{base64.b64encode(clip).decode()}"


def _request(*items):
    return forms.transcription_request(FormData(list(items)))


def test_speakers_are_told_apart_where_they_are_asked_for():
    """By the field or by the format; then channels are looked at too."""
    assert (_request().speakers, _request().channel_mode) == (None, ChannelMode.MIX)
    for items in ((DIARIZED,), (SPEAKERS, VERBOSE), (SPEAKERS, DIARIZED), (DIARIZED, ("model", "whisper-1"))):
        request = _request(*items)
        assert (request.speakers, request.channel_mode) == (SpeakerOptions(), ChannelMode.AUTO)
    subtitles = forms.subtitle_request(FormData([SPEAKERS, ("speaker_style", "dash"), ("channel_mode", "split")]))
    assert (subtitles.speakers, subtitles.channel_mode) == (SpeakerOptions(), ChannelMode.SPLIT)
    assert subtitles.output.speaker_style is SpeakerStyle.DASH
    translation = forms.translation_request(FormData([SPEAKERS, ("response_format", "srt"), ("channel_mode", "mix")]))
    assert (translation.speakers, translation.channel_mode) == (SpeakerOptions(), ChannelMode.MIX)


def test_a_declared_default_says_nothing():
    """Generated clients send every field with the default that openapi.json declares."""
    assert _request(DIARIZED, ("speakers", "false")) == _request(DIARIZED)
    assert _request(("channel_mode", "auto"), ("speakers", "false")) == _request()
    plain = forms.subtitle_request(FormData([("speakers", "false"), ("speaker_style", "name")]))
    assert plain == forms.subtitle_request(FormData([]))
    with pytest.raises(InvalidInput) as caught:
        forms.subtitle_request(FormData([("speaker_style", "dash")]))
    assert caught.value.param == "speaker_style"


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ({"num_speakers": "3"}, SpeakerOptions(3, 3)),
        ({"min_speakers": "2"}, SpeakerOptions(2, None)),
        ({"max_speakers": "40"}, SpeakerOptions(1, 40)),
        ({"min_speakers": "2", "max_speakers": "2"}, SpeakerOptions(2, 2)),
    ],
)
def test_how_many_there_are(counts, found):
    """An exact number, or a least and a greatest one."""
    assert _request(DIARIZED, *counts.items()).speakers == found


@pytest.mark.parametrize("key", ["{}", "{}[]", "{}[0]", "json"])
def test_known_speakers_in_every_spelling(key):
    """A comma in a name and in a data URL divides nothing."""
    names, clips = ["Ann", "Smith, Bob", "[Chris"], [b"RIFF\xff", b"ID3", b"\x00"]
    references = [_url(clips[0]), _url(clips[1], "DATA:;base64"), _url(clips[2], "data:audio/ogg;codecs=opus;base64")]
    lists = {"known_speaker_names": names, "known_speaker_references": references}
    if key == "json":
        items = [(name, json.dumps(values)) for name, values in lists.items()]
    else:
        items = [(key.format(name), value) for name, values in lists.items() for value in values]
    assert _request(DIARIZED, *items).speakers.known == tuple(map(KnownSpeaker, names, clips))


def test_line_breaks_in_a_reference_are_skipped():
    """`base64` writes one after 76 characters."""
    clip = bytes(range(200))
    reference = "data:audio/wav;base64," + base64.encodebytes(clip).decode()
    known = _request(DIARIZED, ("known_speaker_names[]", "A"), ("known_speaker_references[]", reference)).speakers.known
    assert known[0].clip == clip


ONE = _url(b"RIFF")
NAMES, REFERENCES = "known_speaker_names", "known_speaker_references"
WRONG = [
    ([("num_speakers", "2")], "num_speakers"),
    ([("max_speakers", "2")], "max_speakers"),
    ([(NAMES, "Ann"), (REFERENCES, ONE)], NAMES),
    ([(REFERENCES, ONE)], REFERENCES),
    ([("channel_mode", "split")], "channel_mode"),
    ([("channel_mode", "both")], "channel_mode"),
    ([SPEAKERS], "response_format"),
    ([SPEAKERS, ("response_format", "text"), ("stream", "true")], "response_format"),
    ([("speakers", "perhaps")], "speakers"),
    ([DIARIZED, ("num_speakers", "0")], "num_speakers"),
    ([DIARIZED, ("num_speakers", "41")], "num_speakers"),
    ([DIARIZED, ("num_speakers", "two")], "num_speakers"),
    ([DIARIZED, ("num_speakers", "2"), ("min_speakers", "2")], "num_speakers"),
    ([DIARIZED, ("min_speakers", "3"), ("max_speakers", "2")], "min_speakers"),
    ([DIARIZED, ("channel_mode", "both")], "channel_mode"),
    ([DIARIZED, ("channel_mode", "split"), ("max_speakers", "2")], "max_speakers"),
    ([DIARIZED, (NAMES, "Ann")], REFERENCES),
    ([DIARIZED, (REFERENCES, ONE)], NAMES),
    ([DIARIZED, (NAMES, "Ann,Bob"), (REFERENCES, ONE), (REFERENCES, ONE)], NAMES),
    ([DIARIZED, (NAMES, "Ann"), (NAMES, "Ann"), (REFERENCES, ONE), (REFERENCES, ONE)], NAMES),
    ([DIARIZED, (NAMES, "A" * 65), (REFERENCES, ONE)], NAMES),
    ([DIARIZED, (NAMES, "Ann\nBob"), (REFERENCES, ONE)], NAMES),
    ([DIARIZED, (NAMES, '["\\ud83d"]'), (REFERENCES, ONE)], NAMES),
    ([DIARIZED, *[(NAMES, str(n)) for n in range(5)], *[(REFERENCES, ONE)] * 5], NAMES),
    ([DIARIZED, (NAMES, "Ann"), (REFERENCES, "https://example.com/ann.wav")], REFERENCES),
    ([DIARIZED, (NAMES, "Ann"), (REFERENCES, "data:audio/wav,abc")], REFERENCES),
    ([DIARIZED, (NAMES, "Ann"), (REFERENCES, "data:audio/wav;base64,UklG*")], REFERENCES),
    ([DIARIZED, (NAMES, "Ann"), (REFERENCES, "data:audio/wav;base64,")], REFERENCES),
    ([DIARIZED, (NAMES, "Ann"), (REFERENCES, "data:audio/wav;base64,ü")], REFERENCES),
    ([DIARIZED, (NAMES, "Ann"), (REFERENCES, _url(bytes(MAX_CLIPS_BYTES + 1)))], REFERENCES),
    (
        [DIARIZED, *((NAMES, name) for name in "AB"), *[(REFERENCES, _url(bytes(MAX_CLIPS_BYTES // 2 + 1)))] * 2],
        REFERENCES,
    ),
]


@pytest.mark.parametrize(("items", "param"), WRONG, ids=[f"{i}-{param}" for i, (_, param) in enumerate(WRONG)])
def test_what_is_wrong_or_contradicts_itself_is_named(items, param):
    """The error has the field, and no word of a name or a recording."""
    with pytest.raises(InvalidInput) as caught:
        _request(*items)
    assert (caught.value.code, caught.value.param) == ("invalid_value", param)
    assert "Ann" not in caught.value.message
    assert "UklG" not in caught.value.message.replace("UklGRg...", "")


@pytest.mark.parametrize(
    ("items", "code", "param"),
    [
        ([SPEAKERS], "invalid_value", "response_format"),
        ([SPEAKERS, DIARIZED], "unsupported_value", "response_format"),
        ([SPEAKERS, VERBOSE, ("speaker_style", "dash")], "unsupported_value", "speaker_style"),
        ([("speaker_style", "none"), VERBOSE], "invalid_value", "speaker_style"),
    ],
)
def test_what_a_translation_cannot_show_is_refused(items, code, param):
    """A cue is translated as a whole, and the text alone has no place for names."""
    with pytest.raises(InvalidInput) as caught:
        forms.translation_request(FormData(items))
    assert (caught.value.code, caught.value.param) == (code, param)


def test_segments_show_speakers_with_any_format():
    """The route whose events are segments takes json, which shows none by itself."""
    assert forms.segments_request(FormData([SPEAKERS])).speakers == SpeakerOptions()


def test_the_documented_fields_have_plain_types():
    """A field that may be left out is a number or one of some words in `/docs`, and not a choice of schemas."""
    content = forms.request_schema(JobForm)["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]
    assert content["num_speakers"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 40,
        "title": "Num Speakers",
        "description": "How many people speak, where that is known.",
    }
    assert content["channel_mode"]["enum"] == ["mix", "split", "auto"]
