"""Writes and reads WebVTT files."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

from asr_server.subtitle import timecodes
from asr_server.subtitle.cues import Cue

# Cue text must escape these: WebVTT, section 4.2.2 "WebVTT cue text".
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
# A voice span, as `render` writes it: the speaker of the cue.
_VOICE = re.compile(r"<v(?:\.[^\s>]*)?[ \t]+([^>]*)>")
_TAG = re.compile(r"<[^>]*(?:>|\Z)")  # an unclosed tag extends to the end of the text


def render(cues: Iterable[Cue]) -> str:
    """Return the whole file: the header, then cues with `HH:MM:SS.mmm` times, a blank line after each. Speakers are
    voice spans."""
    body = "".join(f"{timecodes.span(cue, '.')}\n{_text(cue)}\n\n" for cue in cues)
    return f"WEBVTT\n\n{body}"


def parse(file: str) -> list[Cue]:
    """Return the cues of a WebVTT file without their markup and settings; of bilingual cues all lines as text. A voice
    span at the beginning of a cue is its speaker."""
    return [
        Cue(start, end, html.unescape(_TAG.sub("", text)).replace(timecodes.JOINER, ""), speaker=_speaker(text))
        for start, end, text in timecodes.blocks(file)
    ]


def _speaker(text: str) -> str:
    voice = _VOICE.match(text)
    return html.unescape(voice[1]).strip() if voice else ""


def _text(cue: Cue) -> str:
    voice = f"<v {cue.speaker.translate(_ESCAPES)}>" if cue.speaker else ""
    return voice + "\n".join(map(timecodes.without_timecode, cue.lines)).translate(_ESCAPES)
