"""OpenAI's own clients, unmodified and in several versions, against a running server."""
