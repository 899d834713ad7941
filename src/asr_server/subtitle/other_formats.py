"""Writes cues for other programs: Advanced SubStation Alpha (ASS), tab-separated values (TSV) and lyrics (LRC).

A line of TSV or LRC begins with the name of its speaker where that is another than before.
"""

from __future__ import annotations

from collections.abc import Iterable

from asr_server.subtitle import timecodes
from asr_server.subtitle.cues import Cue, with_names
from asr_server.text.joining import unbroken

# Sizes are in the units of PlayRes. The colours are &HAABBGGRR: white text with a black outline.
_HEAD = """\
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
    return _HEAD + "".join(
        f"Dialogue: 0,{_ass_time(cue.start_ms)},{_ass_time(cue.end_ms)},Default,{_name(cue)},0,0,0,,{_text(cue)}\n"
        for cue in cues
    )


def _name(cue: Cue) -> str:
    """A comma would end the field."""
    return cue.speaker.replace(",", " ")


def _ass_time(ms: int) -> str:
    """Return `H:MM:SS.cc`."""
    minutes, seconds, centiseconds = _parts(ms)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}.{centiseconds:02}"


def _text(cue: Cue) -> str:
    """A brace would begin markup, and a backslash before a letter or a brace would be a command."""
    lines = (line.replace("\\", f"\\{timecodes.JOINER}").replace("{", "\\{").replace("}", "\\}") for line in cue.lines)
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
