"""Who goes next on the one engine thread, and when the model may sleep. Takes work; knows no model."""
