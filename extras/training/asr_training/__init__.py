"""Trains the demonstration checkpoints, and makes random ones of the released layout. The server never imports it."""
