"""Where a sentence ends, by its punctuation. Not restoring punctuation that is not there."""

from __future__ import annotations

import re

# A full stop of any script the model writes, and perhaps what closes behind it.
_END = re.compile(r"[.!?…؟۔।。！？｡][\"'”’»」』)\]）]*\s*\Z")


def ends_sentence(text: str) -> bool:
    """Whether `text` ends with the mark that ends a sentence."""
    return bool(_END.search(text))
