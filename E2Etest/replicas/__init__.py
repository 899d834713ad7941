"""Several servers behind HAProxy, as docs/replicas.md describes them: replaced one by one, and killed, under load."""
