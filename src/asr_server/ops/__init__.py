"""Health, metrics, models and the web page."""
