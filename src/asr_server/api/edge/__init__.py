"""What every request and socket passes first: authentication, origins, limits, the request log."""
