"""The job queue, the engine thread, admission and quotas. Independent of the model."""
