"""Several servers behind HAProxy, as docs/run/scaling.md describes them: replaced and killed under load."""
