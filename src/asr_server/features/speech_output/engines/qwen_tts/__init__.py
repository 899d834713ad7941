"""The speech engine `qwen`: Qwen3-TTS, CustomVoice and Base."""
