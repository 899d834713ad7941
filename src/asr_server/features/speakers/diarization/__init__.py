"""The speakers of a recording or a live session: when each speaks, and with what voice."""
