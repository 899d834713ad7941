"""The telephony bridge against the real server, with the frames that telephone systems send."""
