"""Clients of the server's own protocols, for programs and for the commands of `cli/`. They know only the wire."""
