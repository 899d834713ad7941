"""Who spoke when in a recording or a live session, and whose voice it is."""
