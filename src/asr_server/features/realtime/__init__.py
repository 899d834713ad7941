"""OpenAI's Realtime protocol for transcription: sessions over `WS /v1/realtime`, and keys for browsers."""
