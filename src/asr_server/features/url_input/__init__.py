"""Recordings by URL: a form has a `url` in place of a file, and the server fetches its content."""

from asr_server.engine.feature import Feature

FEATURE = Feature("url_input", server=f"{__name__}.recordings")
