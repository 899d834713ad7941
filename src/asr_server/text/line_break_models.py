"""The places where a line may break in a script without spaces, by the small models of BudouX.

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
    """Offsets in `run`, a text without spaces, at which a phrase ends, including the end of `run`.

    In a script without a model every offset is one. Han is taken for Japanese if there is kana too, else for simplified
    Chinese.
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
    import budoux  # imported with the first text that needs it

    parser: Parser = getattr(budoux, f"load_default_{language}_parser")()
    return parser
