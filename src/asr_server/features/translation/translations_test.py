"""Transcripts and cues through a scripted endpoint: whatever it answers, as many cues, in order, at the same times."""

import re
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asr_server.core.conftest import raises
from asr_server.core.errors import TranslationUnavailable
from asr_server.core.settings import Settings
from asr_server.core.transcript import Segment, Transcript
from asr_server.features.translation.conftest import HOPELESS, MENDABLE, ScriptedLlm, refusal, right, translation
from asr_server.features.translation.lines import Reason
from asr_server.features.translation.translations import Translations, laid_out, translated
from asr_server.features.translation.translator import cue_text
from asr_server.recordings.requests import ResponseFormat, TranslationRequest
from asr_server.subtitle.alignment import estimate
from asr_server.subtitle.cues import Cue, CueConfig, render_srt, render_vtt

TO_GERMAN = TranslationRequest(language="de")
KEPT = replace(TO_GERMAN, source_on_failure=True)
LIMIT_S = 60.0
RULES = CueConfig(max_line_columns=200)
MISBEHAVIOURS = {**MENDABLE, **HOPELESS}
CLOCK = re.compile(r"(\d+):(\d\d):(\d\d)[.,](\d{3}) --> (\d+):(\d\d):(\d\d)[.,](\d{3})")
CUES = [Cue(0, 900, "the first sentence is here"), Cue(1000, 2000, "and the second one is there")]
SHARED = settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def any_cues(draw):
    """Cues in order of time with any text at all."""
    texts = st.text(max_size=20) | st.sampled_from(["", "<b>&", "-->", "OK"]) | st.integers(0).map("say {} now".format)
    edges = sorted(draw(st.lists(st.integers(0, 10**8), min_size=2, max_size=40)))
    return [Cue(a, b, draw(texts)) for a, b in pairwise(edges)]


@pytest.fixture
def llm():
    with ScriptedLlm() as server:
        yield server


@pytest.fixture
def translating(llm):
    @asynccontextmanager
    async def build(**changes):
        given = {"openai_base_url": llm.base_url, "translate_model": "scripted"} | changes
        translations = Translations(Settings(_env_file=None, **given))
        translations._endpoint._max_retries = 0
        try:
            yield translations
        finally:
            await translations.close()

    return build


async def _translated(translations, cues, request=TO_GERMAN, language="", limit_s=LIMIT_S):
    return await translations.lines([(cue.text, language) for cue in cues], request, 0.0, limit_s)


async def _transcript_of(translations, source):
    """Return the translated transcript."""
    texts = [(segment.text, segment.language) for segment in source.segments]
    return translated(source, await translations.lines(texts, TO_GERMAN, 0.0, LIMIT_S))


def _times(file):
    """The times of a file's cues in milliseconds, read by the rules of the formats."""
    blocks = [block for block in file.removeprefix("WEBVTT\n\n").split("\n\n") if block.strip("\n")]
    found = []
    for block in blocks:
        (clock,) = CLOCK.findall(block)
        a, b, c, d, e, f, g, h = map(int, clock)
        found.append(((a * 60 + b) * 60 + c) * 1000 + d)
        found.append(((e * 60 + f) * 60 + g) * 1000 + h)
    return list(zip(found[::2], found[1::2], strict=True))


@SHARED
@given(any_cues(), st.lists(st.sampled_from(sorted(MISBEHAVIOURS)), min_size=1, max_size=6))
async def test_count_order_and_times_are_those_of_the_source(llm, translating, cues, names):
    """Any cues, any sequence of misbehaviours: as many cues, each at its own times, also behind a total failure."""
    llm.restart(lambda call: MISBEHAVIOURS[names[call.number % len(names)]](call))
    async with translating() as translations:
        found = await _translated(translations, cues, KEPT)
    assert [(c.start_ms, c.end_ms) for c in laid_out(cues, found, RULES)] == [(c.start_ms, c.end_ms) for c in cues]
    assert [(c.start_ms, c.end_ms) for c in laid_out(cues, found, RULES, bilingual=True)] == [
        (c.start_ms, c.end_ms) for c in cues
    ]
    for before, after, line in zip(cues, laid_out(cues, found, RULES), found.lines, strict=True):
        assert line.translated or after == before


@SHARED
@given(any_cues(), st.lists(st.sampled_from(sorted(MISBEHAVIOURS)), min_size=1, max_size=6))
async def test_the_written_file_has_the_cues_of_the_source(llm, translating, cues, names):
    """Read back from SRT and WebVTT, the translated and the bilingual file have the source's times, all and no more."""
    clean = [replace(cue, text=cue_text(cue.text) or "-") for cue in cues]
    llm.restart(lambda call: MISBEHAVIOURS[names[call.number % len(names)]](call))
    async with translating() as translations:
        found = await _translated(translations, clean, KEPT)
    for shown in (laid_out(cues, found, RULES), laid_out(cues, found, RULES, bilingual=True)):
        for written in (render_srt(shown), render_vtt(shown)):
            assert _times(written) == [(cue.start_ms, cue.end_ms) for cue in cues]


async def test_cues_go_out_without_times_and_come_back_with_them(llm, translating):
    """No time, number or arrow of a cue is in any request; the answer is laid over the source's times."""
    async with translating() as translations:
        cues = [Cue(61_234, 62_345, "a sentence of its own")]
        found = await _translated(translations, cues, language="English")
    assert laid_out(cues, found, RULES) == [Cue(61_234, 62_345, translation("a sentence of its own"))]
    sent = llm.calls[0].body["messages"][1]["content"]
    assert not re.search(r"61|62|234|345|-->", sent)
    assert llm.calls[0].content["source_language"] == "English"


async def test_both_languages_in_one_cue(llm, translating):
    """The source line above, the translation below; a kept line stands once."""
    llm.script = lambda call: refusal(400) if "second" in str(call.lines) else right(call)
    async with translating() as translations:
        found = await _translated(translations, CUES)
    assert ["\n".join(cue.lines) for cue in laid_out(CUES, found, RULES, bilingual=True)] == [
        f"{CUES[0].text}\n{translation(CUES[0].text)}",
        CUES[1].text,
    ]
    assert (found.untranslated, found.lines[1].reason) == (1, Reason.REFUSED)


def _transcript(*segments):
    parts = tuple(
        Segment(1000 * i, 1000 * i + 900, text, language, (1, 2), -0.2, 0.1)
        for i, (text, language) in enumerate(segments)
    )
    return Transcript(" ".join(text for text, _ in segments), segments[0][1] if segments else "", 9000, parts)


async def test_a_transcript_keeps_its_times_and_scores(llm, translating):
    """Text and language are the target's; what wrote the other text, its tokens, is gone."""
    source = _transcript(("the first sentence is here", "English"), ("and the second one is there", "English"))
    async with translating() as translations:
        found = await _transcript_of(translations, source)
    assert found.text == " ".join(translation(s.text) for s in source.segments)
    assert (found.language, found.duration_ms) == ("German", 9000)
    for before, after in zip(source.segments, found.segments, strict=True):
        assert after == replace(before, text=translation(before.text), language="German", tokens=())


@pytest.mark.parametrize("texts", [[("guten Tag zusammen", "German"), ("bis morgen dann", "German")], []])
async def test_a_source_in_the_target_language_asks_nobody(llm, translating, texts):
    """The transcript comes back as it was, and nothing left the server."""
    source = _transcript(*texts)
    async with translating() as translations:
        found = await _transcript_of(translations, source)
        lines = await _translated(translations, CUES, replace(TO_GERMAN, source_language="German"))
    assert (found, laid_out(CUES, lines, RULES), lines.untranslated) == (source, CUES, 0)
    assert llm.calls == []


async def test_a_recording_of_two_languages_sends_only_the_other(llm, translating):
    """Segments of the target language stay, letter by letter."""
    source = _transcript(("guten Tag zusammen", "German"), ("and the second one is there", "English"))
    async with translating() as translations:
        found = await _transcript_of(translations, source)
    assert found.segments[0] == source.segments[0]
    assert found.segments[1].text == translation(source.segments[1].text)


async def test_subtitles_are_translated_at_their_own_temperature(llm, translating):
    """Cues need fewer surprises than running text. TRANSLATE_TEMPERATURE sets both."""
    source = _transcript(("the first sentence is here", "English"))
    words = estimate(source.text, "English", [(0, 900)])
    source = replace(source, segments=(replace(source.segments[0], words=words),))
    for changes in ({}, {"translate_temperature": 0.0}):
        async with translating(**changes) as translations:
            for wanted in (ResponseFormat.SRT, ResponseFormat.TEXT):
                await translations.answer(source, replace(TO_GERMAN, response_format=wanted), LIMIT_S)
    assert [call.body["temperature"] for call in llm.calls] == [0.1, 0.3, 0.0, 0.0]


async def test_a_failure_is_raised_or_comes_with_the_source(llm, translating):
    """As the caller asked; the message has the kind of failure and no word of what was said."""
    llm.script = HOPELESS["broken"]
    async with translating() as translations:
        with raises("translation_failed", match="status 500") as caught:
            await _translated(translations, CUES)
        assert "sentence" not in caught.value.message
        found = await _translated(translations, CUES, KEPT)
    assert (laid_out(CUES, found, RULES), found.untranslated) == (CUES, 2)
    assert found.failure.code == "translation_failed"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"openai_base_url": None}, ["OPENAI_BASE_URL"]),
        ({"translate_model": ""}, ["TRANSLATE_MODEL"]),
        ({"openai_base_url": None, "translate_model": ""}, ["OPENAI_BASE_URL", "TRANSLATE_MODEL"]),
    ],
)
async def test_a_server_without_an_endpoint_says_what_to_set(translating, changes, named):
    """The message names every setting that is missing; a caller may still ask for the source instead."""
    async with translating(**changes) as translations:
        with pytest.raises(TranslationUnavailable) as caught:
            translations.check()
        with pytest.raises(TranslationUnavailable):
            await _translated(translations, CUES)
        assert (await _translated(translations, CUES, KEPT)).failure
    assert all(name in caught.value.message for name in named)


async def test_the_callers_limit_counts(llm, translating):
    """It is what is left of a request's time; a job may take longer than a request."""
    llm.script = lambda call: replace(right(call), wait_s=0.5)
    async with translating(request_timeout=0.1) as translations:
        assert (await _translated(translations, CUES)).untranslated == 0
        with raises("translation_failed", match=r"within 0\.1 s"):
            await _translated(translations, CUES, limit_s=0.1)


async def test_the_language_that_the_caller_states_overrides_the_recognised_one(llm, translating):
    """The endpoint is told that the cues are French, though English was recognised."""
    async with translating() as translations:
        stated = replace(TO_GERMAN, source_language="French")
        await _translated(translations, CUES, stated, language="English")
    assert {call.content["source_language"] for call in llm.calls} == {"French"}
