"""Live transcription over the real socket."""
