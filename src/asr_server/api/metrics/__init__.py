"""Metrics in Prometheus' terms. Lower layers report plain figures to observers; the library is used here only."""
