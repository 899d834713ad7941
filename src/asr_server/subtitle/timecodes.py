"""Times as SRT and VTT write them, and the blocks of text behind them. Knows no escapes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile

from asr_server.subtitle.cues import Cue

JOINER = "\u2060"

_TIME = r"(?:(\d{1,9}):)?(\d{1,2}):(\d{2})[.,](\d{3})"  # VTT may leave out the hours
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}(?:\s.*)?")
_MEANT_AS_TIMES = re.compile(r"\s*\d+:\d[\d:.,]*\s*-+>\s*\d+:\d.*")


def span(cue: Cue, point: str) -> str:
    """The time line of a cue, with `point` before the milliseconds."""
    return f"{timestamp(cue.start_ms, point)} --> {timestamp(cue.end_ms, point)}"


def timestamp(ms: int, point: str) -> str:
    """`HH:MM:SS` and milliseconds behind `point`; hours grow past two digits rather than wrap."""
    seconds, ms = divmod(ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{point}{ms:03}"


def unstamped(line: str) -> str:
    """A line of text made unlike a time line, also to lenient readers: word joiners (not shown) behind its colons."""
    return line.replace(":", f":{JOINER}") if "-->" in line else line


def blocks(file: str) -> Iterator[tuple[int, int, str]]:
    """Start and end in ms and the raw text of every time line and the lines behind it, up to a blank one or, where none
    is between two cues, to the next time line and the number above it."""
    lines = _lines(file)
    heads = [(at, times) for at, line in enumerate(lines) if (times := _TIMES.fullmatch(line))]
    ends = [*(at for at, _ in heads[1:]), len(lines)]
    for (at, times), end in zip(heads, ends, strict=False):
        text = list(takewhile(str.strip, lines[at + 1 : end]))
        if len(text) == end - at - 1 and end < len(lines) and text and text[-1].strip().isdecimal():
            text.pop()
        yield _ms(times.groups()[:4]), _ms(times.groups()[4:]), "\n".join(text)


def unread(file: str) -> list[int]:
    """The numbers, from 1, of lines that were meant as time lines and are none: the cues below them are lost."""
    return [
        number
        for number, line in enumerate(_lines(file), start=1)
        if _MEANT_AS_TIMES.fullmatch(line) and not _TIMES.fullmatch(line)
    ]


def _lines(file: str) -> list[str]:
    return file.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _ms(parts: tuple[str | None, ...]) -> int:
    hours, minutes, seconds, milliseconds = (int(part or 0) for part in parts)
    return ((hours * 60 + minutes) * 60 + seconds) * 1000 + milliseconds
