"""The places where speech begins, ends and may be cut, from speech probabilities and loudness. Pure: no model, no
I/O."""
