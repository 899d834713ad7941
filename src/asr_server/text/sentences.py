"""Whether a text ends a sentence, by its punctuation."""

from __future__ import annotations

import re

# A sentence end in any script that the model writes, and perhaps closing quotes and brackets.
_END = re.compile(r"[.!?…؟۔।。！？｡][\"'”’»」』)\]）]*\s*\Z")


def ends_sentence(text: str) -> bool:
    return bool(_END.search(text))
