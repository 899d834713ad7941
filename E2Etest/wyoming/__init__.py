"""The Wyoming bridge against the real server, with the wyoming package's own client."""
