"""Text to speech: routes, sockets, engines and encoding. Child processes import only some of its modules."""
