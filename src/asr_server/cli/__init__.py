"""Commands for people. Each parses its arguments, calls one thing, and turns errors into one line and an exit code."""
