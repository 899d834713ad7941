"""Connections: access control, error responses, limits for bodies and sockets, and shares of event loop time."""
