"""Which characters belong to scripts written without spaces. The one place that lists them, by Unicode 16 blocks."""

from __future__ import annotations

import re

# Letters and signs, each as the inside of a regular expression's character class.
THAI = "\u0e01-\u0e2e\u0e30-\u0e3a\u0e40-\u0e45\u0e47-\u0e59"  # without the marks of abbreviation and repetition
KANA = "\u3040-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f"
HAN = (
    "\u2e80-\u2fdf\u3005-\u3007\u3100-\u312f\u31a0-\u31ef\u3400-\u9fff\uf900-\ufaff"  # with Bopomofo
    "\U00020000-\U0003ffff"
)
LETTERS = f"{THAI}{KANA}{HAN}\u0e80-\u0eff\u1000-\u109f\u1780-\u17ff"  # and Lao, Myanmar, Khmer
# What else stands among those letters: the rest of the Thai block, CJK punctuation, full-width forms.
PUNCTUATION = "\u0e00-\u0e7f\u2fe0-\u303f\u30fb\u3200-\u33ff\uff00-\uff65\uffa0-\uffef"

_UNSPACED = re.compile(f"[{LETTERS}{PUNCTUATION}]")


def is_unspaced(char: str) -> bool:
    """Whether `char` belongs to a script that puts no spaces between words, letters and punctuation alike."""
    return bool(_UNSPACED.match(char))
