"""The decoding libraries as they are installed: for people who look for what is wrong. Decodes nothing."""

from __future__ import annotations


def ffmpeg_version() -> str:
    """The FFmpeg that PyAV brings along. Raises `ImportError` where it cannot be loaded."""
    import av

    return str(av.ffmpeg_version_info)
