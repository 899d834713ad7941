"""The live session as a pure machine: PCM and results in, actions out. No I/O, no clock but the sample count."""
