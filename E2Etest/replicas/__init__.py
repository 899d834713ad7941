"""Several servers behind HAProxy, as docs/run/replicas.md describes them: replaced and killed under load."""
