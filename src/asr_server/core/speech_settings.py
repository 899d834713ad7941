"""The settings of speech output. A part of `core/settings.py`."""

from __future__ import annotations

from pydantic import BaseModel, Field


class SpeechSettings(BaseModel):
    """The engines that speak, and their limits."""

    speech: str = Field(
        "auto",
        min_length=1,
        description="What speaks: `espeak` (small), `piper`, `piper/VOICE` or a path of voices of Piper, a directory "
        "or hub id of Qwen3-TTS, `off`, or `auto`: Piper in English and eSpeak NG in other languages.",
    )
    speech_clone_model: str = Field(
        "", description="A Base checkpoint of Qwen3-TTS (directory or hub id), which imitates voices."
    )
    speech_language: str = Field(
        "en", min_length=2, max_length=20, description="Language of texts in Latin letters whose request names none."
    )
    speech_loudness_lufs: float | None = Field(
        None,
        ge=-40,
        le=-10,
        description="Loudness of speech by ITU-R BS.1770, in LUFS, such as -18. Not set: as the engine makes it.",
    )
    max_speech_chars: int = Field(
        20_000,
        ge=1,
        le=200_000,
        description="Longest text of a request, in characters; longer ones are jobs. `WS /ws/speech`: the most that "
        "may wait to be spoken.",
    )
    speech_socket_idle_s: float = Field(
        300.0,
        gt=0,
        le=86_400,
        description="`WS /ws/speech`: seconds without a message from the client and without speech, after which the "
        "socket is closed.",
    )
    max_queue_speech_s: float = Field(
        14_400.0, gt=0, description="Limit of accepted but unspoken seconds of speech; more work gets 429."
    )
    audio_cache_mb: float = Field(
        64.0, ge=0, description="MiB of spoken answers that are kept for the same request; 0: none."
    )
