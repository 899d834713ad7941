"""Bodies of translated transcripts."""

import asyncio
import json
from dataclasses import replace

from asr_server.core.settings import Settings
from asr_server.core.transcript import Segment, TimeSource, Transcript, Word
from asr_server.features.translation import translations
from asr_server.features.translation.translations import TranslatedLines, cue_languages, render_transcript
from asr_server.features.translation.translator import Reason, Translated
from asr_server.recordings.requests import ResponseFormat, TranslationRequest
from asr_server.subtitle.cues import Cue, CueConfig
from asr_server.text import languages

SEGMENTS = tuple(Segment(1000 * i, 1000 * i + 900, f"word {i}", "English", (i,), -0.2, 0.1) for i in range(2))
SOURCE = Transcript("word 0 word 1", "English", 2000, SEGMENTS)
KLINGON = languages.find("Klingon")
FOUND = TranslatedLines((Translated("mu'"), Translated("word 1", Reason.NO_ANSWER)), KLINGON)


def _json(source, response_format):
    return json.loads(render_transcript(source, FOUND, _request(response_format)).content)


def _request(response_format, **how):
    return TranslationRequest(language="tlh", response_format=response_format, **how)


def test_a_target_that_the_recogniser_does_not_know_has_its_name_and_tag():
    """Any language of the world's list, in the spelling of each format."""
    plain, verbose = (_json(SOURCE, kind) for kind in (ResponseFormat.JSON, ResponseFormat.VERBOSE_JSON))
    assert (plain["language"], plain["language_code"]) == ("Klingon", "tlh")
    assert (verbose["language"], verbose["languages"]) == ("klingon", [{"code": "tlh"}])
    assert plain["untranslated"] == verbose["untranslated"] == 1
    # Translated or not, and why; no tokens that wrote another text.
    assert [(s["text"], s["translated"], s["reason"], s["tokens"]) for s in verbose["segments"]] == [
        ("mu'", True, "", []),
        ("word 1", False, "no_answer", [1]),
    ]


def test_a_translation_keeps_its_speakers():
    """On segments, before each source of a bilingual text, and before the cues where they change, in their room."""
    said = tuple(replace(segment, speaker="AB"[i]) for i, segment in enumerate(SEGMENTS))
    source = replace(SOURCE, segments=said)
    assert [s["speaker"] for s in _json(source, ResponseFormat.VERBOSE_JSON)["segments"]] == ["A", "B"]
    assert render_transcript(source, FOUND, _request(ResponseFormat.TEXT)).content == b"A: mu'\nB: word 1\n"
    both = render_transcript(source, FOUND, _request(ResponseFormat.TEXT, bilingual=True)).content
    assert both == b"A: word 0\nmu'\n\nB: word 1\n"

    cues = tuple(Cue(1000 * i, 1000 * i + 900, "word", speaker="Ann") for i in range(2))
    found = TranslatedLines(2 * [Translated("one two three four five six seven eight")], KLINGON)
    written = translations.render_cues(
        cues, found, _request(ResponseFormat.SRT), CueConfig(max_line_columns=39)
    ).content.decode()
    first, second = (block.split("\n", 2)[2] for block in written.strip().split("\n\n"))
    assert first == "Ann: one two three four\nfive six seven eight"
    assert second == "one two three four five six seven eight"


def _segment(start, text, language):
    words = tuple(
        Word(w, start + 300 * i, start + 300 * i + 300, TimeSource.ALIGNED) for i, w in enumerate(text.split())
    )
    return Segment(start - 100, words[-1].end_ms, text, language, (), 0.0, 0.0, words=words)


def test_a_cue_of_two_languages_has_none():
    """Such a cue is not taken for one that is in the target language already: half of it would stay as it is."""
    segments = [_segment(100, "Ja.", "German"), _segment(450, "turn on the light", "English")]
    assert cue_languages([Cue(100, 2000, "Ja. turn on the light")], segments) == [""]
    both = [Cue(100, 440, "Ja."), Cue(450, 2400, "turn on the light")]
    assert cue_languages(both, segments) == ["German", "English"]


async def test_the_cues_of_a_long_recording_are_made_beside_the_event_loop():
    segments = tuple(_segment(6000 * i, "one two three four five six, " * 3, "English") for i in range(300))
    transcript, request = Transcript("", "English", 0, segments), _request(ResponseFormat.SRT, source_on_failure=True)
    made = asyncio.create_task(translations.Translations(Settings(_env_file=None)).answer(transcript, request, 60.0))
    turns = 0
    while not made.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert turns > 5
