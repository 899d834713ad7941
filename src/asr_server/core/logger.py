"""Logging set-up: loguru for everything, stdlib and library loggers and warnings included.

Lines carry ids, sizes, times and outcomes; never audio, transcript text, file names or keys. `logger.contextualize`
adds the id of the request, job or live session to each line that is logged while it is processed.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from loguru import logger

from asr_server.core.setting_types import LogLevel

if TYPE_CHECKING:
    from loguru import Message, Record

_TEXT = (
    "<green>{time:YYYY-MM-DD HH:mm:ss.SSS}</green> <level>{level: <7}</level> "
    "<cyan>{name}</cyan> {message}{extra[tail]}"
)

# Libraries whose INFO lines repeat the server's own request line, or name files and addresses of requests.
_QUIET = ("httpx", "httpx2", "httpcore", "urllib3", "multipart", "python_multipart", "filelock", "numba", "asyncio")


class InterceptHandler(logging.Handler):
    """Forwards stdlib log records to loguru at the same level, with the name of their logger."""

    def emit(self, record: logging.LogRecord) -> None:
        """Forward one record; exceptions keep their traceback."""
        try:
            level: str | int = logger.level(record.levelname).name
        except ValueError:
            level = record.levelno
        patched = logger.patch(lambda r: r.update({"name": record.name}))
        patched.opt(exception=record.exc_info).log(level, _on_one_line(record.getMessage().strip()))


def configure(level: LogLevel, *, as_json: bool) -> None:
    """Send every log line of this process to stderr, as text or as one JSON object a line."""
    logger.remove()
    logger.configure(patcher=_add_tail)
    # diagnose would print the values of local variables: audio, texts and keys among them.
    options = {"level": level.value, "backtrace": False, "diagnose": False}
    if as_json:
        logger.add(_write_json, format="{message}", **options)  # type: ignore[arg-type]  # the stubs want a TypedDict
    else:
        logger.add(sys.stderr, format=_TEXT, **options)  # type: ignore[arg-type]  # as above
    warnings.showwarning = _log_warning
    logging.basicConfig(handlers=[InterceptHandler()], level=logging.INFO, force=True)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).handlers = []
        logging.getLogger(name).propagate = True
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def _log_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Log a warning in place of `warnings.showwarning`, with file and line in a field. The source line is left out: it
    may contain data that a caller sent."""
    place = f"{Path(filename).name}:{lineno}"
    patched = logger.patch(lambda r: r.update({"name": "warnings"})).bind(warning=category.__name__, place=place)
    patched.warning(_on_one_line(str(message)))


def _add_tail(record: Record) -> None:
    fields = " ".join(f"{k}={v}" for k, v in record["extra"].items() if k != "tail")
    record["extra"]["tail"] = f" {_on_one_line(fields)}" if fields else ""


def _on_one_line(text: str) -> str:
    """Escape control characters: text from a peer must not look like another log line, or control a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _write_json(message: Message) -> None:
    record = message.record
    line: dict[str, object] = {
        "time": record["time"].isoformat(),
        "level": record["level"].name,
        "logger": record["name"],
        "message": record["message"],
    }
    line.update((k, v) for k, v in record["extra"].items() if k != "tail")
    if record["exception"] is not None:
        line["exception"] = "".join(traceback.format_exception(*record["exception"]))
    sys.stderr.write(json.dumps(line, default=str, ensure_ascii=False) + "\n")
