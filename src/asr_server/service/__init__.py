"""The use cases: recordings, live sessions, jobs and translations. Deadlines and cancellation are handled here."""
