"""Text to speech: routes, sockets, engines and encoding."""
