"""OpenAI's own clients, unmodified and in several versions, against the real server."""
