"""Jobs: recordings and texts that are processed while nobody waits."""
