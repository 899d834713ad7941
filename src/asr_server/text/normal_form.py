"""Normal forms of Unicode in linear time.

Sorting a run of combining marks takes quadratic time inside `unicodedata`, with the interpreter's lock held. Runs are
therefore bounded as in Unicode's Stream-Safe Text Format (UAX 15, section 13), which no writing system comes near.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import Literal

_MOST_MARKS = 30  # in a run
_FIRST_MARK, _LAST_MARK = 0x300, 0x1E94A
_JOINER = "\u034f"  # the combining grapheme joiner, which separates marks and is not shown


def normal_form(form: Literal["NFC", "NFKC", "NFD", "NFKD"], text: str) -> str:
    """Return `text` in a normal form. A run of more than 30 combining marks gets an invisible joiner after each 30."""
    if text.isascii():
        return text
    return unicodedata.normalize(form, _long_runs().sub(rf"\g<0>{_JOINER}", text))


@cache
def _long_runs() -> re.Pattern[str]:
    """Return the pattern of 30 marks before another one; a mark begins with one in its decomposition."""
    chars = map(chr, range(_FIRST_MARK, _LAST_MARK + 1))
    marks = "".join(char for char in chars if unicodedata.combining(unicodedata.normalize("NFKD", char)[0]))
    return re.compile(f"[{marks}]{{{_MOST_MARKS}}}(?=[{marks}])")
