"""Text to speech: routes, sockets, engines and encoding. Child processes import this package for less than all."""
