"""Bridges from other voice protocols to a server, as clients of the server."""
