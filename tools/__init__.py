"""What builds, measures and documents the server. None of it is installed with the server."""
