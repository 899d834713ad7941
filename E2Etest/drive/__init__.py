"""Drives a server in tests: its process or thread, its clients, recordings and live sessions."""
