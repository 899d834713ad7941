"""Alignment of a known text: a recording and its text in, the words with times and scores out.

docs/use/http-api.md has the route.
"""

from asr_server.engine.feature import Feature

FEATURE = Feature("alignments", server=f"{__name__}.route")
