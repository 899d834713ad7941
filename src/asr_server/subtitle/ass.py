"""Writes Advanced SubStation Alpha files, as libass, mpv, VLC and ffmpeg read them."""

from __future__ import annotations

from collections.abc import Iterable

from asr_server.subtitle import timecodes
from asr_server.subtitle.cues import Cue

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


def render(cues: Iterable[Cue]) -> str:
    """The whole file: one style at the bottom of the picture, and a `Dialogue` line for each cue, with its speaker as
    its name."""
    return _HEAD + "".join(
        f"Dialogue: 0,{_time(cue.start_ms)},{_time(cue.end_ms)},Default,{_name(cue)},0,0,0,,{_text(cue)}\n"
        for cue in cues
    )


def _name(cue: Cue) -> str:
    """A comma would end the field."""
    return cue.speaker.replace(",", " ")


def _time(ms: int) -> str:
    """`H:MM:SS.cc`."""
    seconds, centiseconds = divmod(round(ms / 10), 100)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}.{centiseconds:02}"


def _text(cue: Cue) -> str:
    """A brace would begin markup, and a backslash before a letter or a brace would be a command."""
    lines = (line.replace("\\", f"\\{timecodes.JOINER}").replace("{", "\\{").replace("}", "\\}") for line in cue.lines)
    return "\\N".join(lines)
