"""The commands as a user runs them: real processes, pipes and terminals, against the real server or without one."""
