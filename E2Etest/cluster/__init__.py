"""The server as a Ray Serve application, with two engine replicas. Needs `make .venv/.cluster`."""
