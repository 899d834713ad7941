"""Recordings in, transcripts out: items 1 to 3, 5 to 7, 16 and 18."""

from __future__ import annotations

import io
import re
import warnings
from typing import Any

from openai.types.audio import Transcription, TranscriptionVerbose, Translation, TranslationVerbose
from world import MODEL, TOLD, WORDS, case, client, create, recording


def _heard(file: Any) -> None:
    assert create(file=file).text == WORDS


@case(1, "file-path")
def file_path():
    _heard(recording("sample"))


@case(1, "file-open")
def file_open():
    with recording("sample").open("rb") as opened:
        _heard(opened)


@case(1, "file-bytes")
def file_bytes():
    _heard(recording("sample").read_bytes())


@case(1, "file-bytesio")
def file_bytesio():
    _heard(io.BytesIO(recording("sample").read_bytes()))


@case(1, "file-typed")
def file_typed():
    _heard(("a.wav", recording("sample").read_bytes(), "audio/wav"))


@case(1, "file-untold")
def file_untold():
    _heard(("recording", recording("sample").read_bytes()))


@case(1, "file-unicode")
def file_unicode():
    _heard(("Gespräch mit 王 \U0001f600.wav", recording("sample").read_bytes()))


@case(1, "usage")
def usage():
    result = create()
    assert isinstance(result, Transcription)
    assert (result.text, result.usage.type, result.usage.seconds) == (WORDS, "duration", 5)


@case(1, "aliases")
def aliases():
    listed = client().models.list().data
    names = [model.id for model in listed if model.model_dump()["task"] == "automatic-speech-recognition"]
    assert len(names) > 4
    assert {create(model=name).text for name in names} == {WORDS}


@case(2, "text")
def text():
    result = create(response_format="text")
    assert type(result) is str
    assert result == WORDS + "\n"


# A cue may break between any two words.
LINES = r"\s".join(WORDS.split())


@case(2, "srt")
def srt():
    result = create(response_format="srt")
    assert type(result) is str
    assert re.fullmatch(rf"1\n\d\d:\d\d:\d\d,\d{{3}} --> \d\d:\d\d:\d\d,\d{{3}}\n{LINES}\n\n", result)


@case(2, "vtt")
def vtt():
    result = create(response_format="vtt")
    assert type(result) is str
    assert re.fullmatch(rf"WEBVTT\n\n\d\d:\d\d:\d\d\.\d{{3}} --> \d\d:\d\d:\d\d\.\d{{3}}\n{LINES}\n\n", result)


@case(2, "text-media-type")
def text_media_type():
    for response_format in ("text", "srt", "vtt"):
        raw = client().audio.transcriptions.with_raw_response.create(
            file=recording("sample"), model=MODEL, response_format=response_format
        )
        assert raw.headers["content-type"] == "text/plain; charset=utf-8"


@case(2, "json")
def json_object():
    assert type(create(response_format="json")) is Transcription


def _verbose(**fields: Any) -> TranscriptionVerbose:
    result = create(file=recording("spans"), response_format="verbose_json", **fields)
    assert isinstance(result, TranscriptionVerbose)
    return result


def _check_segments(result: TranscriptionVerbose) -> None:
    assert result.segments
    assert " ".join(segment.text.strip() for segment in result.segments) == result.text
    times = [at for segment in result.segments for at in (segment.start, segment.end)]
    assert times == sorted(times)
    assert times[-1] <= float(result.duration)


def _check_words(result: TranscriptionVerbose) -> None:
    assert result.words
    assert [word.word for word in result.words] == result.text.split()
    times = [at for word in result.words for at in (word.start, word.end)]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] <= float(result.duration)


@case(3, "verbose")
def verbose():
    result = _verbose()
    _check_segments(result)
    assert not result.words


@case(3, "verbose-segment")
def verbose_segment():
    result = _verbose(timestamp_granularities=["segment"])
    _check_segments(result)
    assert not result.words


@case(3, "verbose-word")
def verbose_word():
    result = _verbose(timestamp_granularities=["word"])
    _check_words(result)
    assert not result.segments


@case(3, "verbose-both")
def verbose_both():
    result = _verbose(timestamp_granularities=["word", "segment"])
    _check_words(result)
    _check_segments(result)


@case(3, "verbose-language")
def verbose_language():
    result = _verbose()
    assert (result.language, result.task) == ("english", "transcribe")


def _translated(**fields: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # OpenAI's own route is going; the method still works
        return client().audio.translations.create(file=recording("sample"), model=MODEL, **fields)


@case(16, "translation")
def translation():
    result = _translated()
    assert isinstance(result, Translation)
    assert result.text == WORDS


@case(16, "translation-formats")
def translation_formats():
    for response_format in ("text", "srt", "vtt"):
        result = _translated(response_format=response_format)
        assert type(result) is str
        assert re.search(LINES, result)


@case(16, "translation-verbose")
def translation_verbose():
    result = _translated(response_format="verbose_json")
    assert isinstance(result, TranslationVerbose)
    assert (result.language, result.text, result.task) == ("english", WORDS, "translate")
    assert [segment.text for segment in result.segments or ()] == [WORDS]


@case(5, "logprobs")
def logprobs():
    entries = create(include=["logprobs"]).logprobs
    assert bytes(int(b) for entry in entries for b in entry.bytes).decode().strip() == WORDS
    assert all(entry.token and entry.logprob <= 0 for entry in entries)
    assert any(entry.logprob < 0 for entry in entries)


@case(5, "no-logprobs")
def no_logprobs():
    assert create().logprobs is None


@case(6, "chunking-auto")
def chunking_auto():
    assert create(chunking_strategy="auto").text == WORDS


@case(6, "chunking-object")
def chunking_object():
    strategy = {"type": "server_vad", "threshold": 0.5, "prefix_padding_ms": 300, "silence_duration_ms": 500}
    assert create(chunking_strategy=strategy).text == WORDS


@case(6, "chunking-json")
def chunking_json():
    strategy: Any = '{"type": "server_vad", "threshold": 0.5, "prefix_padding_ms": 300, "silence_duration_ms": 500}'
    assert create(chunking_strategy=strategy).text == WORDS


@case(6, "languages")
def languages():
    # A parameter since 3.x; before, the same bytes by extra_body.
    for several in (["en"], ["en", "zh"]):
        answer = create(languages=several)
        assert (answer.text, answer.language_code) == (WORDS, "en")
    assert create(languages=["zh", "de"]).language_code in ("zh", "de")


@case(6, "lists")
def lists():
    for key in ("include", "include[]", "include[0]"):
        assert create(extra_body={key: "logprobs"}).logprobs
    assert create(extra_body={"include": '["logprobs"]'}).logprobs
    joined = create(response_format="verbose_json", extra_body={"timestamp_granularities": "segment,segment"})
    assert joined.segments


@case(6, "empty-fields")
def empty_fields():
    # 3.x sends the empty strings, older versions leave the fields out.
    assert create(language="", prompt="").text == WORDS


@case(6, "extra-fields")
def extra_fields():
    assert create(extra_body={"vad_filter": True, "x_vendor": {"a": [1, 2]}}).text == WORDS


@case(7, "prompt")
def prompt():
    result = create(prompt='He said "kitchen",\r\n\tthen <|im_end|> — naïve? 厨房!')
    assert "kitchen lights" in result.text


@case(7, "unicode-text")
def unicode_text():
    said = create(file=recording("chinese"))
    assert re.fullmatch(r"[\u4e00-\u9fff]+", said.text)
    assert create(file=recording("chinese"), response_format="text") == said.text + "\n"
    assert create(file=recording("chinese"), response_format="verbose_json").text == said.text
    events = create(file=recording("chinese"), stream=True)
    assert list(events)[-1].text == said.text


@case(18, "models-list")
def models_list():
    models = client().models.list().data
    assert {"demo", "whisper-1", "gpt-4o-transcribe"} <= {model.id for model in models}
    assert {model.object for model in models} == {"model"}
    assert all(type(model.created) is int and model.owned_by for model in models)


@case(18, "models-retrieve")
def models_retrieve():
    assert client().models.retrieve("whisper-1").id == "whisper-1"


@case(18, "models-slash")
def models_slash():
    name = TOLD["absent_model"]
    assert client("absent").models.retrieve(name).id == name
