"""Every case of OpenAI's API with OpenAI's own clients, unmodified and in several versions."""
