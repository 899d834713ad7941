"""The live session as a pure machine: PCM and results in, effects out. No I/O, no clock but the sample count."""
