"""Routes for operators: health, probes, metrics, and the web page."""
