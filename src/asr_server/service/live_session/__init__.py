"""Live sessions: the asynchronous part around the state machine of `asr_server.live`."""
