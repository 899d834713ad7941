"""Times as SRT and VTT write them, and the blocks of text behind them. Knows no escapes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from asr_server.subtitle.cues import Cue

JOINER = "\u2060"

_TIME = r"(?:(\d+):)?(\d{1,2}):(\d{2})[.,](\d{3})"  # VTT may leave out the hours
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}(?:\s.*)?")


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
    """Start and end in ms and the raw text of every time line and the lines behind it, up to a blank one."""
    lines = iter(file.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n"))
    for line in lines:
        times = _TIMES.fullmatch(line)
        if times:
            text = []
            for following in lines:
                if not following.strip():
                    break
                text.append(following)
            yield _ms(times.groups()[:4]), _ms(times.groups()[4:]), "\n".join(text)


def _ms(parts: tuple[str | None, ...]) -> int:
    hours, minutes, seconds, milliseconds = (int(part or 0) for part in parts)
    return ((hours * 60 + minutes) * 60 + seconds) * 1000 + milliseconds
