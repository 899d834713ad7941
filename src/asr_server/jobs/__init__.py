"""Jobs: recordings and texts that are processed in the background."""
