"""The HTTP routes: forms in, bodies and server-sent events out."""
