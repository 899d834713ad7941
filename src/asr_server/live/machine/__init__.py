"""The live session as a state machine without I/O: events in, actions out."""
