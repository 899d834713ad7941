"""Recordings by their URLs: a form with `url` in place of a file, whose content the server gets."""

from asr_server.engine.feature import Feature

FEATURE = Feature("url_input", server=f"{__name__}.recordings")
