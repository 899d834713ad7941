"""Programs that build, measure and document the server. They are not installed with the server."""
