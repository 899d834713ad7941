"""Transcripts and cues through a scripted endpoint: whatever it answers, as many cues, in order, at the same times."""

from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asr_server.core.conftest import raises
from asr_server.features.translation.conftest import HOPELESS, MENDABLE, endpoint_settings, right, translation
from asr_server.features.translation.translations import Translations, laid_out
from asr_server.features.translation.translator import cue_text
from asr_server.recordings.requests import TranslationRequest
from asr_server.subtitle.cues import Cue, CueConfig, parse_srt, parse_vtt, render_srt, render_vtt

TO_GERMAN = TranslationRequest(language="de")
RULES = CueConfig(max_line_columns=200)
# A connection that breaks has no answer that says how soon to try again.
MISBEHAVIOURS = {name: script for name, script in {**MENDABLE, **HOPELESS}.items() if name != "cut-body"}
CUES = [Cue(0, 900, "the first sentence is here"), Cue(1000, 2000, "and the second one is there")]


@st.composite
def any_cues(draw):
    """Cues in order of time with any text at all."""
    texts = st.text(max_size=20) | st.sampled_from(["", "<b>&", "-->", "OK"]) | st.integers(0).map("say {} now".format)
    edges = sorted(draw(st.lists(st.integers(0, 10**8), min_size=2, max_size=40)))
    return [Cue(a, b, draw(texts)) for a, b in pairwise(edges)]


@asynccontextmanager
async def translating(llm, **changes):
    translations = Translations(endpoint_settings(llm.base_url, **changes))
    try:
        yield translations
    finally:
        await translations.close()


async def _translated(translations, cues, request=TO_GERMAN, language="", limit_s=60.0):
    return await translations.lines([(cue.text, language) for cue in cues], request, 0.0, limit_s)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(any_cues(), st.lists(st.sampled_from(sorted(MISBEHAVIOURS)), min_size=1, max_size=6))
async def test_the_written_file_has_the_cues_of_the_source(llm, cues, names):
    """Any cues, any sequence of misbehaviours, also a total failure: read back from SRT and WebVTT, the translated and
    the bilingual file have the source's times, all and no more. A cue has its own translation, or is as it was."""
    clean = [replace(cue, text=cue_text(cue.text) or "-") for cue in cues]
    llm.restart(lambda call: MISBEHAVIOURS[names[call.number % len(names)]](call))
    async with translating(llm) as translations:
        found = await _translated(translations, clean, replace(TO_GERMAN, source_on_failure=True))
    for shown in (laid_out(cues, found, RULES), laid_out(cues, found, RULES, bilingual=True)):
        for read in (parse_srt(render_srt(shown)), parse_vtt(render_vtt(shown))):
            assert [(cue.start_ms, cue.end_ms) for cue in read] == [(cue.start_ms, cue.end_ms) for cue in cues]
    for before, after, source, line in zip(cues, laid_out(cues, found, RULES), clean, found.lines, strict=True):
        assert line.translated or after == before
        assert not line.translated or line.text in (translation(source.text), source.text)


async def test_the_callers_limit_counts(llm):
    """It is what is left of a request's time; a job may take longer than a request."""
    llm.script = lambda call: replace(right(call), wait_s=0.5)
    async with translating(llm, request_timeout=0.1) as translations:
        assert (await _translated(translations, CUES)).untranslated == 0
        with raises("translation_failed", match=r"within 0\.1 s"):
            await _translated(translations, CUES, limit_s=0.1)


async def test_the_language_that_the_caller_states_overrides_the_recognised_one(llm):
    async with translating(llm) as translations:
        stated = replace(TO_GERMAN, source_language="French")
        await _translated(translations, CUES, stated, language="English")
    assert {call.content["source_language"] for call in llm.calls} == {"French"}
