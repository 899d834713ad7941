"""The server behind its gateway: the same to its callers, and there again after every crash."""
