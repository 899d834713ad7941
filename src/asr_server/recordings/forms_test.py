"""Requests from forms: every field arrives, and what does not fit together or is not served is refused."""

import pytest
from starlette.datastructures import FormData

from asr_server.core.errors import InvalidInput
from asr_server.recordings import forms
from asr_server.recordings.requests import (
    OutputOptions,
    ResponseFormat,
    ServerVad,
    SubtitleRequest,
    TranscriptionRequest,
    TranslationRequest,
    WordTimes,
)

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
    "chunking": ServerVad(threshold=0.4),
    "word_times": WordTimes.ESTIMATED,
}


def _form(*items):
    return FormData(list(items))


def test_what_is_left_out_is_the_default_of_the_request():
    """One truth for each default, whichever way a request is made."""
    assert forms.transcription_request(_form(("model", "whisper-1"))) == TranscriptionRequest()
    assert forms.subtitle_request(_form()) == SubtitleRequest()
    assert forms.translation_request(_form(("model", "whisper-1"))) == TranslationRequest()


def test_every_field_of_a_transcription_arrives():
    """In the request's own terms: the model's name of the language, one list of words."""
    fields = [("model", "demo"), ("language", "de-CH"), ("response_format", "json"), ("include[]", "logprobs")]
    request = forms.transcription_request(_form(*COMMON, *fields, ("stream", "true"), ("return_timestamps", "1")))
    output = OutputOptions(ResponseFormat.JSON, words=True, logprobs=True)
    assert request == TranscriptionRequest(**STATED, model="demo", language="German", output=output, stream=True)


def test_every_field_of_subtitles_and_translations_arrives():
    """A translation's `language` is the target, and may be any language of the world."""
    layout = [("max_line_chars", "30"), ("max_lines", "3")]
    output = OutputOptions(ResponseFormat.VTT, max_line_chars=30, max_lines=3)
    subtitles = forms.subtitle_request(_form(*COMMON, *layout, ("format", "vtt"), ("language", "English")))
    assert subtitles == SubtitleRequest(**STATED, language="English", output=output)
    fields = [("model", "demo"), ("language", "Klingon"), ("source_language", "en"), ("response_format", "vtt")]
    switches = [("glossary", '{"light": "wov"}'), ("bilingual", "yes"), ("source_on_failure", "true")]
    assert forms.translation_request(_form(*COMMON, *layout, *fields, *switches)) == TranslationRequest(
        **STATED,
        model="demo",
        language="English",
        output=output,
        target_language="tlh",
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
        output = forms.transcription_request(form).output
        assert (output.segments, output.words, output.cues) == (segments, words, cues), (asked, response_format)


# Fields, and the code and the parameter of the error.
REFUSED = [
    ({"temperature": "2"}, "invalid_value", "temperature"),
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
    assert (request.language, request.languages) == (language, among)


def test_the_languages_of_a_translation_are_those_of_the_recording():
    """`language` is the one to translate into."""
    request = forms.translation_request(_form(("language", "fr"), ("languages", "de,en")))
    assert (request.target_language, request.language, request.languages) == ("fr", None, ("German", "English"))


def test_what_cannot_be_served_is_refused_and_named():
    """An option that was ignored would look served."""
    cases = [(forms.transcription_request, *case) for case in REFUSED]
    cases += [(forms.translation_request, *case) for case in REFUSED_TRANSLATIONS]
    for build, fields, code, param in cases:
        with pytest.raises(InvalidInput) as caught:
            build(_form(*{"model": "whisper-1", **fields}.items()))
        assert (caught.value.code, caught.value.param) == (code, param)
