"""Subtitles of the server as files, for players."""

from pathlib import Path

import httpx


def written(recording: str, server: str, wanted: str, folder: Path) -> Path:
    with Path(recording).open("rb") as file:
        form = {"files": {"file": file}, "data": {"response_format": wanted}}
        answer = httpx.post(f"{server}/v1/audio/transcriptions", timeout=120, **form)
    path = folder / f"subtitles.{wanted}"
    path.write_bytes(answer.raise_for_status().content)
    return path
