"""Trains the demonstration checkpoints. The server never imports this package."""
