"""A live session goes on at another server, from what its client carries there."""
