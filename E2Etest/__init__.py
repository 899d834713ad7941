"""End-to-end tests: the real server process, spoken to over HTTP only."""
