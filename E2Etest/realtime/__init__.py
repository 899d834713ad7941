"""OpenAI's realtime protocol, spoken by OpenAI's own clients."""
