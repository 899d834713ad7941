"""The remote engine: a server with OpenAI's transcriptions runs the model, `vllm serve` or another asr-server."""
