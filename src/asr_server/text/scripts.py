"""The characters of scripts that are written without spaces, by the blocks of Unicode 16."""

from __future__ import annotations

import re

# Each is the inside of a character class of a regular expression.
THAI = "\u0e01-\u0e2e\u0e30-\u0e3a\u0e40-\u0e45\u0e47-\u0e59"  # without the marks of abbreviation and repetition
KANA = "\u3040-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f"
HAN = (
    "\u2e80-\u2fdf\u3005-\u3007\u3100-\u312f\u31a0-\u31ef\u3400-\u9fff\uf900-\ufaff"  # with Bopomofo
    "\U00020000-\U0003ffff"
)
LETTERS = f"{THAI}{KANA}{HAN}\u0e80-\u0eff\u1000-\u109f\u1780-\u17ff"  # and Lao, Myanmar, Khmer
# Other characters among those letters: the rest of the Thai block, CJK punctuation, full-width forms.
PUNCTUATION = "\u0e00-\u0e7f\u2fe0-\u303f\u30fb\u3200-\u33ff\uff00-\uff65\uffa0-\uffef"

_UNSPACED = re.compile(f"[{LETTERS}{PUNCTUATION}]")


def is_unspaced(char: str) -> bool:
    """True if `char`, a letter or punctuation, belongs to a script that puts no spaces between words."""
    return bool(_UNSPACED.match(char))
