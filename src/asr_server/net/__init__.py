"""Connections: who may do what, errors as answers, limits of bodies and sockets, and the event loop's time."""
