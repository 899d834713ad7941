"""Other people's voice protocols in front of a server of ours. Knows no model; speaks to the server as a client."""
