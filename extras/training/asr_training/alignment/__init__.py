"""Trains the demo aligner: the demo encoder and language model, with a head that predicts the times of words."""
