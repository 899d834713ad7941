"""The requests that forms make, and what is refused."""

import base64
import json
from urllib.parse import parse_qsl

import pytest
from starlette.datastructures import FormData

from asr_server.core.errors import InvalidInput
from asr_server.recordings import forms, requests
from asr_server.recordings.requests import ResponseFormat, SubtitleRequest, TranscriptionRequest, TranslationRequest

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
    "chunking_strategy": requests.ChunkingStrategy("server_vad", threshold=0.4),
    "mode": "fast",
}


def _form(*items):
    return FormData(list(items))


def _request(*items):
    return forms.transcription_request(_form(*items))


def test_what_is_left_out_is_the_default_of_the_request():
    """One truth for each default, whichever way a request is made."""
    assert _request(("model", "whisper-1")) == TranscriptionRequest().checked()
    assert forms.subtitle_request(_form()) == SubtitleRequest().checked()
    assert forms.translation_request(_form(("model", "whisper-1"))) == TranslationRequest().checked()


def test_every_field_of_a_transcription_arrives():
    """In the request's own terms: the model's name of the language, one list of words."""
    fields = [("model", "demo"), ("language", "de-CH"), ("response_format", "json"), ("include[]", "logprobs")]
    request = _request(*COMMON, *fields, ("stream", "true"), ("return_timestamps", "1"))
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
    stated |= {"model": "demo", "source_language": "English", "response_format": ResponseFormat.VTT, "language": "tlh"}
    stated |= {"glossary": {"light": "wov"}, "bilingual": True, "source_on_failure": True}
    assert forms.translation_request(_form(*COMMON, *layout, *fields, *switches)) == TranslationRequest(**stated)


def test_granularities_choose_what_is_listed():
    """`segment` is the default, which some clients send along with every format."""
    for asked in (["segment"], ["word"], ["word", "segment"], ["cue"]):
        assert _request(VERBOSE, *(("timestamp_granularities[]", one) for one in asked)).listed == {*asked}
    for items in ((VERBOSE,), (("response_format", "text"), ("timestamp_granularities[]", "segment"))):
        assert _request(*items).listed == {"segment"}


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
    request = _request(*fields.items())
    assert (request.spoken_language, request.languages) == (language, among)


DIARIZED = ("response_format", "diarized_json")
SPEAKERS = ("speakers", "true")
VERBOSE = ("response_format", "verbose_json")


def _url(clip, head="data:audio/wav;base64"):
    return f"{head},{base64.b64encode(clip).decode()}"


def test_speakers_are_told_apart_where_they_are_asked_for():
    """The field or the format asks for it; then channels are looked at too."""
    assert (_request().speakers, _request().channel_mode) == (False, "mix")
    for items in ((DIARIZED,), (SPEAKERS, VERBOSE), (SPEAKERS, DIARIZED), (DIARIZED, ("model", "whisper-1"))):
        assert (_request(*items).speakers, _request(*items).channel_mode) == (True, "mix")
    subtitles = forms.subtitle_request(_form(SPEAKERS, ("speaker_style", "dash"), ("channel_mode", "split")))
    assert (subtitles.speakers, subtitles.channel_mode, subtitles.speaker_style) == (True, "split", "dash")
    translation = forms.translation_request(_form(SPEAKERS, ("response_format", "srt"), ("channel_mode", "mix")))
    assert (translation.speakers, translation.channel_mode) == (True, "mix")


def test_a_declared_default_says_nothing():
    """Generated clients send every field with the default that openapi.json declares."""
    assert _request(DIARIZED, ("speakers", "false")) == _request(DIARIZED)
    assert _request(("channel_mode", "mix"), ("speakers", "false")) == _request()
    declared = _form(("speakers", "false"), ("speaker_style", "name"))
    assert forms.subtitle_request(declared) == SubtitleRequest().checked()


@pytest.mark.parametrize("key", ["{}", "{}[]", "{}[0]", "json"])
def test_known_speakers_in_every_spelling(key):
    """A comma in a name and in a data URL divides nothing. `base64` breaks its lines."""
    names, clips = ["Ann", "Smith, Bob", "[Chris"], [b"RIFF\xff", b"ID3", bytes(200)]
    in_lines = "data:audio/ogg;codecs=opus;base64," + base64.encodebytes(clips[2]).decode()
    references = [_url(clips[0]), _url(clips[1], "DATA:;base64"), in_lines]
    lists = {"known_speaker_names": names, "known_speaker_references": references}
    if key == "json":
        items = [(name, json.dumps(values)) for name, values in lists.items()]
    else:
        items = [(key.format(name), value) for name, values in lists.items() for value in values]
    request = _request(DIARIZED, *items)
    assert (request.known_speaker_names, request.known_speaker_references) == (tuple(names), tuple(clips))


NAME, CLIP = "known_speaker_names", "known_speaker_references"
ONE = _url(b"RIFF")
# A code if it is not `invalid_value`, fields, and the field at fault.
REFUSED = """
temperature=2                                                            temperature
temperature=nan                                                          temperature
response_format=odt                                                      response_format
include[]=everything                                                     include
hotwords=["\\ud83d"]                                                     hotwords
chunking_strategy[threshold]=2                                           chunking_strategy.threshold
chunking_strategy={oops                                                  chunking_strategy.type
unsupported_language language=Klingon                                    language
unsupported_language languages[]=Klingon                                 languages
languages=de,fr&language=en                                              languages
unsupported_value include=logprobs&response_format=text                  include
unsupported_value return_timestamps=1&response_format=text               return_timestamps
timestamp_granularities=word                                             timestamp_granularities
unsupported_value timestamp_granularities=cue&response_format=verbose_json&stream=1 timestamp_granularities
num_speakers=2                                                           num_speakers
channel_mode=split                                                       channel_mode
speakers=true                                                            response_format
speakers=true&response_format=text&stream=true                           response_format
response_format=diarized_json&num_speakers=41                            num_speakers
response_format=diarized_json&num_speakers=2&min_speakers=2              num_speakers
response_format=diarized_json&min_speakers=3&max_speakers=2              min_speakers
response_format=diarized_json&channel_mode=split&max_speakers=2          max_speakers
"""
REFUSED_TRANSLATIONS = """
unsupported_language language=Elbonian                                   language
unsupported_language source_language=Klingon                             source_language
languages=de,fr&source_language=en                                       languages
speakers=true                                                            response_format
unsupported_value speakers=true&response_format=diarized_json            response_format
unsupported_value speakers=true&response_format=verbose_json&speaker_style=dash speaker_style
speaker_style=none&response_format=verbose_json                          speaker_style
"""
# Values that are long, or hold what a row of a table cannot.
LONG = [
    ([("prompt", "x" * 20_000)], "prompt"),
    ([("keywords", "[" * 100_000)], "hotwords"),
    ([("hotwords", "x" * 9_000), ("keywords", "x" * 9_000)], "hotwords"),
    ([("chunking_strategy", '{"a":' * 40_000)], "chunking_strategy.type"),
    ([("languages", ",".join(["de"] * 101))], "languages"),
    ([(NAME, "Ann"), (CLIP, ONE)], NAME),
    ([(CLIP, ONE)], CLIP),
    ([DIARIZED, (NAME, "Ann")], CLIP),
    ([DIARIZED, (CLIP, ONE)], NAME),
    ([DIARIZED, (NAME, "Ann,Bob"), (CLIP, ONE), (CLIP, ONE)], NAME),
    ([DIARIZED, (NAME, "Ann"), (NAME, "Ann"), (CLIP, ONE), (CLIP, ONE)], NAME),
    *(([DIARIZED, (NAME, name), (CLIP, ONE)], NAME) for name in ("A" * 65, "Ann\nBob", '["\\ud83d"]')),
    ([DIARIZED, *[(NAME, str(n)) for n in range(5)], *[(CLIP, ONE)] * 5], NAME),
    *(([DIARIZED, (NAME, "Ann"), (CLIP, f"data:audio/wav{rest}")], CLIP) for rest in (",abc", ";base64,", ";base64,ü")),
    ([DIARIZED, (NAME, "Ann"), (CLIP, "data:audio/wav;base64,UklG*")], CLIP),
    ([DIARIZED, (NAME, "Ann"), (CLIP, "https://example.com/ann.wav")], CLIP),
    ([DIARIZED, (NAME, "A"), (NAME, "B"), *[(CLIP, _url(bytes(requests.MAX_CLIPS_BYTES // 2 + 1)))] * 2], CLIP),
]


def _rows(build, table):
    for row in table.strip().splitlines():
        *code, fields, param = row.split()
        yield pytest.param(build, parse_qsl(fields), code or ["invalid_value"], param, id=f"{fields[:40]}-{param}")


@pytest.mark.parametrize(
    ("build", "items", "code", "param"),
    [
        *_rows(forms.transcription_request, REFUSED),
        *_rows(forms.translation_request, REFUSED_TRANSLATIONS),
        *_rows(forms.subtitle_request, "speaker_style=dash speaker_style"),
        *((forms.transcription_request, items, ["invalid_value"], param) for items, param in LONG),
    ],
)
def test_what_is_wrong_or_contradicts_itself_is_named(build, items, code, param):
    """The error has the field, and no word of a name or a recording. An option that was ignored would look served."""
    with pytest.raises(InvalidInput) as caught:
        build(_form(*items))
    assert ([caught.value.code], caught.value.param) == (code, param)
    assert "Ann" not in caught.value.message
    assert "UklG" not in caught.value.message.replace("UklGRg...", "")


def test_prompt_and_hotwords_become_one_context():
    """Each of the two may be missing."""
    assert TranscriptionRequest(prompt=" on lights ", hotwords=("a", "b")).context == "on lights\na, b"
    assert (TranscriptionRequest().context, TranscriptionRequest(hotwords=("kitchen",)).context) == ("", "kitchen")


@pytest.mark.parametrize(("mode", "times"), [("accurate", "aligned"), ("fast", "estimated")])
def test_words_are_timed_only_for_answers_that_have_times(mode, times):
    """Alignment takes as long as a short answer: nobody pays for it who gets none of its times."""
    assert TranscriptionRequest(mode=mode).needed_word_times == "none"
    timed = [SubtitleRequest(mode=mode), TranscriptionRequest(mode=mode, return_timestamps=True)]
    timed += [TranscriptionRequest(mode=mode, response_format=one) for one in (ResponseFormat.SRT, ResponseFormat.VTT)]
    assert {request.needed_word_times for request in timed} == {times}
