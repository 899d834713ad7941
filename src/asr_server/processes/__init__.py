"""Child processes: a fork server for files, workers that answer requests, and the sandbox of both."""
