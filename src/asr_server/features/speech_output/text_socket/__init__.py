"""The WebSocket that speaks a text while it arrives, `/ws/speech`."""
