"""Cues (texts that are shown for some time), their limits, and cue files: SubRip (SRT) and WebVTT.

`cue_segmentation` says which limit gives way. SubRip has no escapes: an invisible word joiner (U+2060) is inserted into
text that would be read as a time line or as markup. A cue of SRT begins with the name of its speaker if the cue before
has another speaker.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import takewhile

from asr_server.text.scripts import TURNING


@dataclass(frozen=True, slots=True)
class Cue:
    """A subtitle, without line numbers."""

    start_ms: int  # it is shown from here,
    end_ms: int  # until just before this
    text: str  # "\\n" separates lines
    translation: str = ""  # the same in another language, shown below in bilingual subtitles
    speaker: str = ""  # the name that files show, which is no part of the text; "" for none

    @property
    def lines(self) -> list[str]:
        """Return all lines as a file can contain them: none empty, no control characters, no space at either end."""
        return [*text_lines(self.text), *text_lines(self.translation)]


def named(speaker: str, text: str) -> str:
    return f"{speaker}: {text}"


def with_names(cues: Iterable[Cue]) -> Iterator[Cue]:
    """Yield the cues, with the name of the speaker before the text if the cue before has another speaker."""
    before = ""
    for cue in cues:
        yield cue if cue.speaker in ("", before) else replace(cue, text=named(cue.speaker, cue.text))
        before = cue.speaker


def text_lines(text: str) -> list[str]:
    """Return the lines of a text, without control characters and empty lines, which would end a cue in SRT and
    WebVTT."""
    shown = (
        line
        if line.isprintable()
        else "".join(" " if unicodedata.category(char) == "Cc" else char for char in line if char not in TURNING)
        for line in text.splitlines()
    )
    return [line.strip() for line in shown if line.strip()]


class SpeakerStyle(StrEnum):
    """The way in which cues show who speaks: by name, by dashes before the lines of two people in one cue, or not at
    all."""

    NAME = "name"
    DASH = "dash"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class CueConfig:
    """The limits of cues. Columns are display columns: a CJK character has two, a combining mark none."""

    max_duration_ms: int = 7000
    min_duration_ms: int = 833
    min_gap_ms: int = 83  # between two cues
    pause_ms: int = 500  # a silence of this length ends a cue
    max_line_columns: int = 42  # 2 at least
    max_lines: int = 2  # 1 at least
    reading_speed: float = 20.0  # characters of one column a second at most
    wide_reading_speed: float = 9.0  # characters of two columns a second at most
    speaker_style: SpeakerStyle = SpeakerStyle.NAME  # for passages with speakers

    def reading_ms(self, columns: int, wide: int) -> float:
        return 1000 * ((columns - 2 * wide) / self.reading_speed + wide / self.wide_reading_speed)


JOINER = "\u2060"

_TIME = r"(?:(\d{1,9}):)?(\d{1,2}):(\d{2})[.,](\d{3})"  # VTT may leave out the hours
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}(?:\s.*)?")


def time_line(cue: Cue, point: str) -> str:
    return f"{timestamp(cue.start_ms, point)} --> {timestamp(cue.end_ms, point)}"


def timestamp(ms: int, point: str) -> str:
    """Return `HH:MM:SS`, then `point` and milliseconds. From 100 hours on, hours have three digits."""
    seconds, ms = divmod(ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{point}{ms:03}"


def without_timecode(line: str) -> str:
    """Return a line of text that even lenient readers do not take for a time line. If it has an arrow, invisible word
    joiners are put after its colons."""
    return line.replace(":", f":{JOINER}") if "-->" in line else line


def blocks(file: str) -> Iterator[tuple[int, int, str]]:
    """Yield the start and end in ms of every time line, and the raw text of the lines after it.

    The text ends at a blank line or, if there is none before the next cue, at that cue's number and time line.
    """
    lines = file.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    heads = [(at, times) for at, line in enumerate(lines) if (times := _TIMES.fullmatch(line))]
    ends = [*(at for at, _ in heads[1:]), len(lines)]
    for (at, times), end in zip(heads, ends, strict=False):
        text = list(takewhile(str.strip, lines[at + 1 : end]))
        if len(text) == end - at - 1 and end < len(lines) and text and text[-1].strip().isdecimal():
            text.pop()
        yield _ms(times.groups()[:4]), _ms(times.groups()[4:]), "\n".join(text)


def _ms(parts: tuple[str | None, ...]) -> int:
    hours, minutes, seconds, milliseconds = (int(part or 0) for part in parts)
    return ((hours * 60 + minutes) * 60 + seconds) * 1000 + milliseconds


_AMBIGUOUS = re.compile(r"--(?=>)|<(?=[/!?A-Za-z])|\{(?=[\\A-Za-z])")
# Markup in files of other programs. In files of this server, text that looks like markup has a joiner inside.
_MARKUP = re.compile(r"</?(?:i|b|u|s|font)\b[^<>]*>|\{\\[^{}]*\}", re.IGNORECASE)


def render_srt(cues: Iterable[Cue], first: int = 1) -> str:
    """Return the whole file: numbers from `first`, `HH:MM:SS,mmm` times, a blank line after each cue. "" for no cues.

    A cue begins with the name of its speaker if the cue before has another speaker.
    """
    numbered = enumerate(with_names(cues), start=first)
    return "".join(f"{i}\n{time_line(cue, ',')}\n{_srt_text(cue)}\n\n" for i, cue in numbered)


def parse_srt(file: str) -> list[Cue]:
    """Return the cues of a SubRip file without their markup. All lines of a bilingual cue become its text.

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
    """Return the cues of a WebVTT file without their markup and settings. All lines of a bilingual cue become its text.
    A voice span at the beginning of a cue names its speaker."""
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
