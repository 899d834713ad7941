"""Which request a wish is; the requests themselves run in E2Etest/cli."""

from asr_server.cli.backend import Layout, RequestOptions, Target, remarks
from asr_server.cli.remote_backend import options
from asr_server.client.options import FileOptions, SubtitleOptions, TranslationOptions
from asr_server.service.requests import ResponseFormat, WordTimes

FAST = Layout(30, 1, WordTimes.ESTIMATED)


def test_a_wish_becomes_the_options_of_its_route():
    """A transcript, subtitles with a layout, a translation with a target."""
    assert options(RequestOptions(language="en", hotwords=("a",))) == FileOptions(language="en", hotwords=("a",))
    cues = options(RequestOptions(response_format=ResponseFormat.VTT, layout=FAST, model="m"))
    assert cues == SubtitleOptions(model="m", format="vtt", mode="fast", max_line_chars=30, max_lines=1)
    target = Target("de", bilingual=True, glossary={"a": "b"})
    other = options(RequestOptions(response_format=ResponseFormat.SRT, layout=FAST, target=target, language="en"))
    assert other == TranslationOptions(
        language="en",
        to="de",
        bilingual=True,
        glossary={"a": "b"},
        response_format="srt",
        mode="fast",
        max_line_chars=30,
        max_lines=1,
    )


def test_estimated_times_are_a_remark_only_where_better_ones_were_wished_for():
    """Aligned ones and wished-for estimates are none; what stayed untranslated always is."""
    accurate, fast = RequestOptions(layout=Layout()), RequestOptions(layout=FAST)
    assert [len(remarks(accurate, timing, 0)) for timing in ("aligned", "mixed", "estimated", "")] == [0, 1, 1, 0]
    assert remarks(fast, "estimated", 0) == ()
    assert "3 lines" in remarks(fast, "", 3)[0]
