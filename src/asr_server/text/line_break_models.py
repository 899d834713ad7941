"""Where a script without spaces may be broken without tearing a word: BudouX's small models. Not a dictionary.

BudouX (Apache-2.0) finds words in Thai and phrases in Japanese and Chinese, in plain Python, at 2.4 us a character.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING

from asr_server.text import scripts

if TYPE_CHECKING:
    from budoux.parser import Parser

_THAI = re.compile(f"[{scripts.THAI}]")
_KANA = re.compile(f"[{scripts.KANA}]")
_HAN = re.compile(f"[{scripts.HAN}]")


def ends(run: str) -> frozenset[int]:
    """Offsets in `run`, a text without spaces, behind which a phrase ends, its own end among them.

    A run in a script that no model knows may be broken anywhere. Han is read as Japanese where there is kana too, else
    as simplified Chinese.
    """
    if _THAI.search(run):
        parser = _parser("thai")
    elif _KANA.search(run):
        parser = _parser("japanese")
    elif _HAN.search(run):
        parser = _parser("simplified_chinese")
    else:
        return frozenset(range(1, len(run) + 1))
    return frozenset(accumulate(len(phrase) for phrase in parser.parse(run)))


@cache
def _parser(language: str) -> Parser:
    import budoux  # read with the first text that needs it

    parser: Parser = getattr(budoux, f"load_default_{language}_parser")()
    return parser
