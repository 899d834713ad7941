"""Removes decoding loops from a text: "thank you thank you thank you ..." becomes "thank you".

The rule is that of the model's own package. Loops of longer units are found in the token ids while they are decoded
(`engine/loops.py`) and tried again in halves. A sentence that is left several times was said so: a chorus, a litany.
"""

from __future__ import annotations

import re

_UNIT_CHARS = 20
_REPEATS = 20

# A unit repeated at least n times in a row, with spaces or nothing between. Lazy, so that the shortest unit matches.
_LOOP = re.compile(rf"(\S(?:.{{0,{_UNIT_CHARS - 1}}}?))(?:\s*\1){{{_REPEATS - 1},}}", re.DOTALL)


def collapse(text: str) -> str:
    """`text` with every unit of up to 20 characters that occurs 20 times or more in a row replaced by one of it."""
    return _LOOP.sub(r"\1", text)
