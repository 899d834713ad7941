"""The order of work: heap, engine thread, admission, quotas and capacity."""
