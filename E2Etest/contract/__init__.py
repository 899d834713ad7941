"""The protocols, tested in one process: the app under uvicorn in a thread, with a fake engine in place of the model."""
