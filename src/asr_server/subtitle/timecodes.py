"""Timecodes of SRT and WebVTT, and the text that follows each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile

from asr_server.subtitle.cues import Cue

JOINER = "\u2060"

_TIME = r"(?:(\d{1,9}):)?(\d{1,2}):(\d{2})[.,](\d{3})"  # VTT may leave out the hours
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}(?:\s.*)?")
_LIKE_TIMES = re.compile(r"\s*\d+:\d[\d:.,]*\s*-+>\s*\d+:\d.*")


def span(cue: Cue, point: str) -> str:
    """Return the time line of a cue, with `point` before the milliseconds."""
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


def unread(file: str) -> list[int]:
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
