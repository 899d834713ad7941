"""SRT and VTT as other people's programs read them, and as we do."""

import html
import io

import av
import pysubs2
import pytest
import webvtt
from hypothesis import example, given
from hypothesis import strategies as st

from asr_server.subtitle.cues import Cue, parse_srt, parse_vtt, render_srt, render_vtt

JOINER = "\u2060"
KINDS = [(render_srt, parse_srt), (render_vtt, parse_vtt)]
NASTY = [
    "two\nlines",
    "a blank\n\n\nline between",
    "1\n00:00:00,000 --> 00:00:09,000\nnot a cue",
    "00:00:01.000 --> 00:00:09.000",
    "--> x <-- 3 < 4 > 2 & 5 &amp; 6 &lt;",
    "<i>tags</i> <b>that are</b> <00:00:01.000> text <c.red> {\\an8}and {b}codes{/b}",
    "NOTE this is not a comment",
    *("WEBVTT", "STYLE", "7"),
    "form\x0cfeed \x85 next\u2028separator \x00 nul \x1b[31m escape\ttab",
    "carriage\rreturn\r\nboth",
    "مرحبا (بك) 2024؟\nשלום",
    "한국어 「日本語」 ไทย हिन्दी 😀",
    "\ufeff spaces around  ",
]


def _cues(texts):
    return [Cue(2000 * i + 7, 2000 * i + 1500, text) for i, text in enumerate(texts)]


def _shown(cue):
    return "\n".join(cue.lines)


def _seen(text):
    """A text without what is not shown, and with all ways to end a line alike."""
    return text.replace(JOINER, "").replace("\r\n", "\n")


def _with_pysubs2(file):
    # Not `plaintext`, which drops everything in braces.
    return [(e.start, e.end, e.text.replace("\\N", "\n")) for e in pysubs2.SSAFile.from_string(file)]


def _with_webvtt(file):
    kind = "vtt" if file.startswith("WEBVTT") else "srt"
    captions = webvtt.from_buffer(io.StringIO(file), format=kind)
    return [(c.start_time.in_milliseconds(), c.end_time.in_milliseconds(), c.text) for c in captions]


def _with_ffmpeg(file):
    kind = "webvtt" if file.startswith("WEBVTT") else "srt"
    found = []
    with av.open(io.BytesIO(file.encode()), format=kind) as container:
        for packet in container.demux():
            if packet.size:
                start, length = (round(float(t * packet.time_base * 1000)) for t in (packet.pts, packet.duration))
                found.append((start, start + length, bytes(packet).decode()))
    return found


CUES = _cues(NASTY)


@pytest.mark.parametrize("read", [_with_pysubs2, _with_webvtt, _with_ffmpeg])
def test_others_read_our_srt(read):
    """Every program finds the cues that were written, at their millisecond, with their text."""
    found = [(start, end, _seen(text)) for start, end, text in read(render_srt(CUES))]
    assert [times[:2] for times in found] == [(cue.start_ms, cue.end_ms) for cue in CUES]
    for cue, (_, _, seen) in zip(CUES, found, strict=True):
        # webvtt-py drops whatever stands between angle brackets: SubRip has no way to say that it is text.
        assert seen == _shown(cue) or (read is _with_webvtt and "<" in cue.text)


@pytest.mark.parametrize("read", [_with_pysubs2, _with_webvtt, _with_ffmpeg])
def test_others_read_our_vtt(read):
    """WebVTT has escapes."""
    found = [(start, end, html.unescape(_seen(text))) for start, end, text in read(render_vtt(CUES))]
    assert found == [(cue.start_ms, cue.end_ms, _shown(cue)) for cue in CUES]


@example(NASTY)
@given(st.lists(st.text(min_size=1).filter(lambda text: text.strip() and JOINER not in text), max_size=5))
def test_any_text_comes_back(texts):
    """No text breaks a file: the cues come back unchanged, except characters that a file cannot hold."""
    cues = [cue for cue in _cues(texts) if cue.lines]
    for render, parse in KINDS:
        assert parse(render(cues)) == [Cue(cue.start_ms, cue.end_ms, _shown(cue)) for cue in cues]


def test_others_files_are_read():
    """Byte order marks, Windows line ends, identifiers, settings, notes, markup and short times."""
    foreign = (
        "\ufeffWEBVTT - title\r\n\r\nNOTE a\r\nnote\r\n\r\nintro\r\n"
        "01:02.500 --> 01:04.000 line:0 align:start\r\n<v Anna>one &amp; <i>two</i>\r\nthree\r\n\r\n"
    )
    assert parse_vtt(foreign) == [Cue(62_500, 64_000, "one & two\nthree", speaker="Anna")]
    marked = '{\\an8}<i>up</i> <font color="#fff">a < b</font> {b}'
    assert parse_srt(f"1\r\n0:00:01,000 --> 0:00:02,500  X1:0\r\n{marked}\r\n") == [Cue(1000, 2500, "up a < b {b}")]


def test_a_cue_ends_where_the_next_begins():
    """The cue ends also where nobody left a blank line between them: players see two, and so must a check."""
    for parse, number in [(parse_srt, "2\n"), (parse_srt, " 2 \n"), (parse_vtt, "")]:
        file = f"00:00:01.000 --> 00:00:02.000\n7\n{number}00:00:01.500 --> 00:00:03.000\nb\n"
        assert parse(file)[1:] == [Cue(1500, 3000, "b")], (parse, number)
        assert parse(file)[0] == Cue(1000, 2000, "7" if number else ""), (parse, number)


def test_a_bilingual_cue_has_both_texts():
    """The translation stands below, in both formats."""
    cue = Cue(0, 1000, "one\ntwo", "eins\n\nzwei")
    for render, parse in KINDS:
        assert parse(render([cue])) == [Cue(0, 1000, "one\ntwo\neins\nzwei")]


SPEAKERS = ["Anna", "Anna", "", "B", "Smith & <Sons>, Ltd. --> x", "张三"]
SPOKEN = [Cue(2000 * i, 2000 * i + 1500, f"text {i}\nmore", speaker=who) for i, who in enumerate(SPEAKERS)]


def test_vtt_has_the_speaker_of_every_cue():
    """The speaker is a voice span, which another program reads, and we read back; the name is no text."""
    file = render_vtt(SPOKEN)
    assert parse_vtt(file) == SPOKEN
    assert "\n<v Smith &amp; &lt;Sons&gt;, Ltd. --&gt; x>text 4\nmore\n" in file
    captions = webvtt.from_buffer(io.StringIO(file))
    assert [html.unescape(caption.voice or "") for caption in captions] == SPEAKERS
    assert [caption.text for caption in captions] == [cue.text for cue in SPOKEN]


def test_srt_names_a_speaker_where_it_changes():
    """The name is text: SubRip has no other place. After a cue without a speaker the name stands again."""
    texts = [cue.text.split("\n")[0].replace(JOINER, "") for cue in parse_srt(render_srt([*SPOKEN[:3], SPOKEN[1]]))]
    assert texts == ["Anna: text 0", "text 1", "text 2", "Anna: text 1"]


def test_srt_is_numbered_and_separated():
    """Numbers from one, a blank line after each cue, no leading space."""
    assert render_srt([Cue(0, 1500, " a "), Cue(61_000, 3_600_000, "b")]) == (
        "1\n00:00:00,000 --> 00:00:01,500\na\n\n2\n00:01:01,000 --> 01:00:00,000\nb\n\n"
    )
