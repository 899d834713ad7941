"""What the server counts, in Prometheus' terms. Only this room knows its library: lower rooms tell plain figures."""
