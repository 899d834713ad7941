"""Live sessions: the WebSocket, and the session that performs what the state machine decides."""
