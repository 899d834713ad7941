"""Where the speech is, found off the event loop: the voice detector in front of the pure span cutter."""
