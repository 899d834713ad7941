"""asr-server as a Ray Serve application."""
