"""Work that outlives its request, and the server: taken at once, done in turn, kept for a while."""
