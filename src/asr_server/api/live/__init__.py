"""The native live WebSocket, `/ws/transcribe`."""
