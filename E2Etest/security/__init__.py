"""Who gets in, what is opened for whom, and what is written about it."""
