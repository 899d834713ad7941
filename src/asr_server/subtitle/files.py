"""Writes and reads files of cues: SubRip (SRT), WebVTT, and for other programs ASS, tab-separated values and lyrics.

SubRip has no escapes. An invisible word joiner (U+2060) is inserted into text that would be read as a time line or as
markup. A cue of SRT, TSV or LRC begins with the name of its speaker where that is another than before.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from itertools import takewhile

from asr_server.subtitle.cues import Cue, with_names
from asr_server.text.scripts import unbroken

JOINER = "\u2060"

_TIME = r"(?:(\d{1,9}):)?(\d{1,2}):(\d{2})[.,](\d{3})"  # VTT may leave out the hours
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}(?:\s.*)?")
_LIKE_TIMES = re.compile(r"\s*\d+:\d[\d:.,]*\s*-+>\s*\d+:\d.*")


def time_line(cue: Cue, point: str) -> str:
    return f"{timestamp(cue.start_ms, point)} --> {timestamp(cue.end_ms, point)}"


def timestamp(ms: int, point: str) -> str:
    """`HH:MM:SS` and milliseconds after `point`; from 100 hours on, hours have three digits."""
    seconds, ms = divmod(ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{point}{ms:03}"


def without_timecode(line: str) -> str:
    """Return a line of text that even lenient readers do not take for a time line: invisible word joiners after its
    colons."""
    return line.replace(":", f":{JOINER}") if "-->" in line else line


def blocks(file: str) -> Iterator[tuple[int, int, str]]:
    """Start and end in ms of every time line, and the raw text of the lines after it.

    The text ends at a blank line or, if there is none before the next cue, at that cue's number and time line.
    """
    lines = _lines(file)
    heads = [(at, times) for at, line in enumerate(lines) if (times := _TIMES.fullmatch(line))]
    ends = [*(at for at, _ in heads[1:]), len(lines)]
    for (at, times), end in zip(heads, ends, strict=False):
        text = list(takewhile(str.strip, lines[at + 1 : end]))
        if len(text) == end - at - 1 and end < len(lines) and text and text[-1].strip().isdecimal():
            text.pop()
        yield _ms(times.groups()[:4]), _ms(times.groups()[4:]), "\n".join(text)


def unread_time_lines(file: str) -> list[int]:
    """Return the numbers, from 1, of lines that look like time lines but are invalid: their cues are lost."""
    return [
        number
        for number, line in enumerate(_lines(file), start=1)
        if _LIKE_TIMES.fullmatch(line) and not _TIMES.fullmatch(line)
    ]


def _lines(file: str) -> list[str]:
    return file.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _ms(parts: tuple[str | None, ...]) -> int:
    hours, minutes, seconds, milliseconds = (int(part or 0) for part in parts)
    return ((hours * 60 + minutes) * 60 + seconds) * 1000 + milliseconds


_AMBIGUOUS = re.compile(r"--(?=>)|<(?=[/!?A-Za-z])|\{(?=[\\A-Za-z])")
# Markup in files of others; in files of this server a joiner is inside.
_MARKUP = re.compile(r"</?(?:i|b|u|s|font)\b[^<>]*>|\{\\[^{}]*\}", re.IGNORECASE)


def render_srt(cues: Iterable[Cue], first: int = 1) -> str:
    """Return the whole file: numbers from `first`, `HH:MM:SS,mmm` times, a blank line after each cue. "" for no cues.

    A cue begins with the name of its speaker where that is another than before.
    """
    numbered = enumerate(with_names(cues), start=first)
    return "".join(f"{i}\n{time_line(cue, ',')}\n{_srt_text(cue)}\n\n" for i, cue in numbered)


def parse_srt(file: str) -> list[Cue]:
    """Return the cues of a SubRip file without their markup; of bilingual cues all lines as text.

    Lines that follow no time line are skipped.
    """
    return [Cue(start, end, _MARKUP.sub("", text).replace(JOINER, "")) for start, end, text in blocks(file)]


def _srt_text(cue: Cue) -> str:
    return _AMBIGUOUS.sub(lambda found: found[0] + JOINER, "\n".join(map(without_timecode, cue.lines)))


# Cue text must escape these: WebVTT, section 4.2.2 "WebVTT cue text".
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
# A voice span, as `render_vtt` writes it: the speaker of the cue.
_VOICE = re.compile(r"<v(?:\.[^\s>]*)?[ \t]+([^>]*)>")
_TAG = re.compile(r"<[^>]*(?:>|\Z)")  # an unclosed tag extends to the end of the text


def render_vtt(cues: Iterable[Cue]) -> str:
    """Return the whole file: the header, then cues with `HH:MM:SS.mmm` times, a blank line after each. Speakers are
    voice spans."""
    body = "".join(f"{time_line(cue, '.')}\n{_vtt_text(cue)}\n\n" for cue in cues)
    return f"WEBVTT\n\n{body}"


def parse_vtt(file: str) -> list[Cue]:
    """Return the cues of a WebVTT file without their markup and settings; of bilingual cues all lines as text. A voice
    span at the beginning of a cue is its speaker."""
    return [
        Cue(start, end, html.unescape(_TAG.sub("", text)).replace(JOINER, ""), speaker=_speaker(text))
        for start, end, text in blocks(file)
    ]


def _speaker(text: str) -> str:
    voice = _VOICE.match(text)
    return html.unescape(voice[1]).strip() if voice else ""


def _vtt_text(cue: Cue) -> str:
    voice = f"<v {cue.speaker.translate(_ESCAPES)}>" if cue.speaker else ""
    return voice + "\n".join(map(without_timecode, cue.lines)).translate(_ESCAPES)


# Sizes are in the units of PlayRes. The colours are &HAABBGGRR: white text with a black outline.
_ASS_HEAD = """\
[Script Info]
ScriptType: v4.00+
PlayResX: 1920
PlayResY: 1080
WrapStyle: 0
ScaledBorderAndShadow: yes

[V4+ Styles]
Format: Name, Fontname, Fontsize, PrimaryColour, SecondaryColour, OutlineColour, BackColour, Bold, Italic, Underline, \
StrikeOut, ScaleX, ScaleY, Spacing, Angle, BorderStyle, Outline, Shadow, Alignment, MarginL, MarginR, MarginV, Encoding
Style: Default,Arial,64,&H00FFFFFF,&H00FFFFFF,&H00000000,&H00000000,0,0,0,0,100,100,0,0,1,3,0,2,60,60,50,1

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
"""


def render_ass(cues: Iterable[Cue]) -> str:
    """Return the whole file, as libass, mpv, VLC and ffmpeg read it.

    It has one style at the bottom of the picture, and a `Dialogue` line for each cue, with its speaker as its name.
    """
    times = ((cue, _ass_time(cue.start_ms), _ass_time(cue.end_ms)) for cue in cues)
    return _ASS_HEAD + "".join(
        # A comma would end the field of the name.
        f"Dialogue: 0,{start},{end},Default,{cue.speaker.replace(',', ' ')},0,0,0,,{_ass_text(cue)}\n"
        for cue, start, end in times
    )


def _ass_time(ms: int) -> str:
    """Return `H:MM:SS.cc`."""
    minutes, seconds, centiseconds = _parts(ms)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}.{centiseconds:02}"


def _ass_text(cue: Cue) -> str:
    """A brace would begin markup, and a backslash before a letter or a brace would be a command."""
    lines = (line.replace("\\", f"\\{JOINER}").replace("{", "\\{").replace("}", "\\}") for line in cue.lines)
    return "\\N".join(lines)


def render_tsv(cues: Iterable[Cue]) -> str:
    """Return a header, then start and end in milliseconds and the text of each cue. No value has a tab inside.

    The command of Whisper writes such files.
    """
    rows = (f"{cue.start_ms}\t{cue.end_ms}\t{_on_one_line(cue)}\n" for cue in with_names(cues))
    return "start\tend\ttext\n" + "".join(rows)


def render_lrc(cues: Iterable[Cue]) -> str:
    """Return `[MM:SS.cc]` and the text of each cue; from 100 minutes on, minutes have three digits. "" for no cues."""
    return "".join(f"{_lrc_time(cue.start_ms)}{_on_one_line(cue)}\n" for cue in with_names(cues))


def _on_one_line(cue: Cue) -> str:
    return unbroken("\n".join(cue.lines))


def _lrc_time(ms: int) -> str:
    minutes, seconds, centiseconds = _parts(ms)
    return f"[{minutes:02}:{seconds:02}.{centiseconds:02}]"


def _parts(ms: int) -> tuple[int, int, int]:
    """Return the minutes, seconds and hundredths of a second of a time."""
    seconds, centiseconds = divmod(round(ms / 10), 100)
    return *divmod(seconds, 60), centiseconds
