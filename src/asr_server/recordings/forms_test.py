"""The requests that forms make, and what is refused."""

from __future__ import annotations

import base64
import json

import pytest
from starlette.datastructures import FormData

from asr_server.core.errors import InvalidInput
from asr_server.recordings import forms
from asr_server.recordings.requests import (
    MAX_CLIPS_BYTES,
    ChannelMode,
    ChunkingStrategy,
    ResponseFormat,
    SubtitleRequest,
    TranscriptionRequest,
    TranslationRequest,
)
from asr_server.subtitle.cues import SpeakerStyle

COMMON = [
    ("prompt", " the kitchen "),
    ("hotwords", "Zürich, Qwen"),
    ("keywords[]", "Oerlikon"),
    ("temperature", "0.5"),
    ("chunking_strategy[type]", "server_vad"),
    ("chunking_strategy[threshold]", "0.4"),
    ("mode", "fast"),
]
STATED = {
    "prompt": "the kitchen",
    "hotwords": ("Zürich", "Qwen", "Oerlikon"),
    "temperature": 0.5,
    "chunking_strategy": ChunkingStrategy("server_vad", threshold=0.4),
    "mode": "fast",
}


def _form(*items):
    return FormData(list(items))


def test_what_is_left_out_is_the_default_of_the_request():
    """One truth for each default, whichever way a request is made."""
    assert forms.transcription_request(_form(("model", "whisper-1"))) == TranscriptionRequest().checked()
    assert forms.subtitle_request(_form()) == SubtitleRequest().checked()
    assert forms.translation_request(_form(("model", "whisper-1"))) == TranslationRequest().checked()


def test_every_field_of_a_transcription_arrives():
    """In the request's own terms: the model's name of the language, one list of words."""
    fields = [("model", "demo"), ("language", "de-CH"), ("response_format", "json"), ("include[]", "logprobs")]
    request = forms.transcription_request(_form(*COMMON, *fields, ("stream", "true"), ("return_timestamps", "1")))
    listed = {"return_timestamps": True, "include": ("logprobs",)}
    assert request == TranscriptionRequest(**STATED, model="demo", language="German", **listed, stream=True)
    assert request.listed == {"segment", "word", "logprobs"}


def test_every_field_of_subtitles_and_translations_arrives():
    """A translation's `language` is the target, and may be any language of the world."""
    layout = [("max_line_chars", "30"), ("max_lines", "3")]
    stated = {**STATED, "max_line_chars": 30, "max_lines": 3}
    subtitles = forms.subtitle_request(_form(*COMMON, *layout, ("format", "vtt"), ("language", "English")))
    assert subtitles == SubtitleRequest(**stated, model="whisper-1", language="English", format="vtt")
    fields = [("model", "demo"), ("language", "Klingon"), ("source_language", "en"), ("response_format", "vtt")]
    switches = [("glossary", '{"light": "wov"}'), ("bilingual", "yes"), ("source_on_failure", "true")]
    assert forms.translation_request(_form(*COMMON, *layout, *fields, *switches)) == TranslationRequest(
        **stated,
        model="demo",
        source_language="English",
        response_format=ResponseFormat.VTT,
        language="tlh",
        glossary={"light": "wov"},
        bilingual=True,
        source_on_failure=True,
    )


def test_granularities_choose_what_is_listed():
    """`segment` is the default, which some clients send along with every format."""
    for asked, response_format, segments, words, cues in (
        ([], "verbose_json", True, False, False),
        (["segment"], "verbose_json", True, False, False),
        (["word"], "verbose_json", False, True, False),
        (["word", "segment"], "verbose_json", True, True, False),
        (["cue"], "verbose_json", False, False, True),
        (["segment"], "text", True, False, False),
    ):
        items = [("timestamp_granularities[]", one) for one in asked]
        form = _form(("model", "x"), ("response_format", response_format), *items)
        listed = forms.transcription_request(form).listed
        assert listed == {
            name for name, is_listed in (("segment", segments), ("word", words), ("cue", cues)) if is_listed
        }


# Fields, and the code and the parameter of the error.
REFUSED = [
    *(({"temperature": wrong}, "invalid_value", "temperature") for wrong in ("2", "warm", "nan")),
    ({"response_format": "odt"}, "invalid_value", "response_format"),
    ({"stream": "perhaps"}, "invalid_value", "stream"),
    ({"include[]": "everything"}, "invalid_value", "include"),
    ({"mode": "roughly"}, "invalid_value", "mode"),
    ({"prompt": "x" * 20_000}, "invalid_value", "prompt"),
    ({"hotwords": '["\\ud83d"]'}, "invalid_value", "hotwords"),
    ({"keywords": "[" * 100_000}, "invalid_value", "hotwords"),
    ({"chunking_strategy[threshold]": "2"}, "invalid_value", "chunking_strategy.threshold"),
    *(
        ({"chunking_strategy": wrong}, "invalid_value", "chunking_strategy.type")
        for wrong in ("always", "{oops", '{"a":' * 40_000)
    ),
    ({"chunking_strategy[type]": "no"}, "invalid_value", "chunking_strategy.type"),
    ({"language": "Klingon"}, "unsupported_language", "language"),
    ({"hotwords": "x" * 9_000, "keywords": "x" * 9_000}, "invalid_value", "hotwords"),
    ({"include": "logprobs", "response_format": "text"}, "unsupported_value", "include"),
    ({"return_timestamps": "1", "response_format": "text"}, "unsupported_value", "return_timestamps"),
    ({"timestamp_granularities": "word"}, "invalid_value", "timestamp_granularities"),
    ({"timestamp_granularities": "cue"}, "invalid_value", "timestamp_granularities"),
    (
        {"timestamp_granularities": "cue", "response_format": "verbose_json", "stream": "true"},
        "unsupported_value",
        "timestamp_granularities",
    ),
    ({"languages[]": "Klingon"}, "unsupported_language", "languages"),
    ({"languages": "de,fr", "language": "en"}, "invalid_value", "languages"),
    ({"languages": ",".join(["de"] * 101)}, "invalid_value", "languages"),
]
REFUSED_TRANSLATIONS = [
    ({"language": "Elbonian"}, "unsupported_language", "language"),
    ({"source_language": "Klingon"}, "unsupported_language", "source_language"),
    ({"languages": "de,fr", "source_language": "en"}, "invalid_value", "languages"),
    # A cue is translated as a whole, and the text alone has no place for names.
    ({"speakers": "true"}, "invalid_value", "response_format"),
    ({"speakers": "true", "response_format": "diarized_json"}, "unsupported_value", "response_format"),
    (
        {"speakers": "true", "response_format": "verbose_json", "speaker_style": "dash"},
        "unsupported_value",
        "speaker_style",
    ),
    ({"speaker_style": "none", "response_format": "verbose_json"}, "invalid_value", "speaker_style"),
]


@pytest.mark.parametrize(
    ("fields", "language", "among"),
    [
        ({}, None, ()),
        ({"languages": "de"}, "German", ()),
        ({"languages[]": "de-DE", "language": "de"}, "German", ()),
        ({"languages": "de, en"}, None, ("German", "English")),
        ({"languages": '["de", "en", "German"]'}, None, ("German", "English")),
        ({"languages": "de,en", "language": "en"}, "English", ()),
        ({"languages": "de,auto"}, None, ()),
    ],
)
def test_one_of_several_languages_is_the_same_as_language_and_more_are_a_choice(fields, language, among):
    """`auto` may be any language."""
    request = forms.transcription_request(_form(*{"model": "whisper-1", **fields}.items()))
    assert (request.spoken_language, request.languages) == (language, among)


def test_the_languages_of_a_translation_are_those_of_the_recording():
    """`language` is the one to translate into."""
    request = forms.translation_request(_form(("language", "fr"), ("languages", "de,en")))
    assert (request.language, request.spoken_language, request.languages) == ("fr", None, ("German", "English"))


def test_what_cannot_be_served_is_refused_and_named():
    """An option that was ignored would look served."""
    cases = [(forms.transcription_request, *case) for case in REFUSED]
    cases += [(forms.translation_request, *case) for case in REFUSED_TRANSLATIONS]
    for build, fields, code, param in cases:
        with pytest.raises(InvalidInput) as caught:
            build(_form(*{"model": "whisper-1", **fields}.items()))
        assert (caught.value.code, caught.value.param) == (code, param)


DIARIZED = ("response_format", "diarized_json")
SPEAKERS = ("speakers", "true")
VERBOSE = ("response_format", "verbose_json")


def _url(clip, head="data:audio/wav;base64"):
    return f"{head},{base64.b64encode(clip).decode()}"


def _request(*items):
    return forms.transcription_request(FormData(list(items)))


def test_speakers_are_told_apart_where_they_are_asked_for():
    """The field or the format asks for it; then channels are looked at too."""
    assert (_request().speakers, _request().channel_mode) == (False, ChannelMode.MIX)
    for items in ((DIARIZED,), (SPEAKERS, VERBOSE), (SPEAKERS, DIARIZED), (DIARIZED, ("model", "whisper-1"))):
        request = _request(*items)
        assert (request.speakers, request.channel_mode) == (True, ChannelMode.MIX)
    subtitles = forms.subtitle_request(FormData([SPEAKERS, ("speaker_style", "dash"), ("channel_mode", "split")]))
    assert (subtitles.speakers, subtitles.channel_mode) == (True, ChannelMode.SPLIT)
    assert subtitles.speaker_style is SpeakerStyle.DASH
    translation = forms.translation_request(FormData([SPEAKERS, ("response_format", "srt"), ("channel_mode", "mix")]))
    assert (translation.speakers, translation.channel_mode) == (True, ChannelMode.MIX)


def test_a_declared_default_says_nothing():
    """Generated clients send every field with the default that openapi.json declares."""
    assert _request(DIARIZED, ("speakers", "false")) == _request(DIARIZED)
    assert _request(("channel_mode", "mix"), ("speakers", "false")) == _request()
    plain = forms.subtitle_request(FormData([("speakers", "false"), ("speaker_style", "name")]))
    assert plain == forms.subtitle_request(FormData([]))
    with pytest.raises(InvalidInput) as caught:
        forms.subtitle_request(FormData([("speaker_style", "dash")]))
    assert caught.value.param == "speaker_style"


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
    request = _request(DIARIZED, *items)
    assert (request.known_speaker_names, request.known_speaker_references) == (tuple(names), tuple(clips))


def test_line_breaks_in_a_reference_are_skipped():
    """`base64` writes one after 76 characters."""
    clip = bytes(range(200))
    reference = "data:audio/wav;base64," + base64.encodebytes(clip).decode()
    request = _request(DIARIZED, ("known_speaker_names[]", "A"), ("known_speaker_references[]", reference))
    assert request.known_speaker_references == (clip,)


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


def test_segments_show_speakers_with_any_format():
    """The route whose events are segments takes json, which shows none by itself."""
    assert forms.segments_request(FormData([SPEAKERS])).speakers


def test_the_documented_fields_have_plain_types():
    """A field that may be left out is a number or one of some words in `/docs`, and not a choice of schemas."""
    documented = forms.request_schema(TranscriptionRequest)["requestBody"]["content"]
    content = documented["multipart/form-data"]["schema"]["properties"]
    assert content["num_speakers"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 40,
        "title": "Num Speakers",
        "description": "How many people speak, where that is known.",
    }
    assert content["channel_mode"]["enum"] == ["mix", "split"]
