"""The characters of scripts that are written without spaces, by Unicode 16 block, and the letters of other scripts.

`join` puts a space between texts, except in scripts without spaces. `continued` continues a text that is already shown
by a new version that may disagree with the shown words.

`normal_form` takes linear time: `unicodedata` would sort a long run of combining marks in quadratic time, with the
interpreter's lock held. Runs are therefore bounded as in Unicode's Stream-Safe Text Format (UAX 15, section 13). No
writing system comes near that bound.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import Literal

# Each is the inside of a character class of a regular expression.
THAI = "\u0e01-\u0e2e\u0e30-\u0e3a\u0e40-\u0e45\u0e47-\u0e59"  # without the marks of abbreviation and repetition
KANA = "\u3040-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f"
HAN = (
    "\u2e80-\u2fdf\u3005-\u3007\u3100-\u312f\u31a0-\u31ef\u3400-\u9fff\uf900-\ufaff"  # with Bopomofo
    "\U00020000-\U0003ffff"
)
LETTERS = f"{THAI}{KANA}{HAN}\u0e80-\u0eff\u1000-\u109f\u1780-\u17ff"  # and Lao, Myanmar, Khmer
# Other characters that stand among these letters: the rest of the Thai block, CJK punctuation, full-width forms.
PUNCTUATION = "\u0e00-\u0e7f\u2fe0-\u303f\u30fb\u3200-\u33ff\uff00-\uff65\uffa0-\uffef"

# Control characters that change the direction of the text around them.
TURNING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"

UNSPACED = re.compile(f"[{LETTERS}{PUNCTUATION}]")


def is_unspaced(char: str) -> bool:
    return bool(UNSPACED.match(char))


# By the ISO 15924 code of a script: the first words of the Unicode names of its letters.
LETTER_NAMES: dict[str, frozenset[str]] = {
    "Latn": frozenset({"LATIN"}),
    "Cyrl": frozenset({"CYRILLIC"}),
    "Grek": frozenset({"GREEK"}),
    "Arab": frozenset({"ARABIC"}),
    "Hebr": frozenset({"HEBREW"}),
    "Deva": frozenset({"DEVANAGARI"}),
    "Beng": frozenset({"BENGALI"}),
    "Guru": frozenset({"GURMUKHI"}),
    "Gujr": frozenset({"GUJARATI"}),
    "Taml": frozenset({"TAMIL"}),
    "Telu": frozenset({"TELUGU"}),
    "Knda": frozenset({"KANNADA"}),
    "Mlym": frozenset({"MALAYALAM"}),
    "Sinh": frozenset({"SINHALA"}),
    "Thai": frozenset({"THAI"}),
    "Laoo": frozenset({"LAO"}),
    "Mymr": frozenset({"MYANMAR"}),
    "Khmr": frozenset({"KHMER"}),
    "Geor": frozenset({"GEORGIAN"}),
    "Armn": frozenset({"ARMENIAN"}),
    "Ethi": frozenset({"ETHIOPIC"}),
    "Kore": frozenset({"HANGUL", "CJK"}),
    "Hans": frozenset({"CJK", "BOPOMOFO"}),
    "Hant": frozenset({"CJK", "BOPOMOFO"}),
    # The last two are the marks of length (ー) and of repetition (々).
    "Jpan": frozenset({"HIRAGANA", "KATAKANA", "CJK", "KATAKANA-HIRAGANA", "IDEOGRAPHIC"}),
}


def letter_names(text: str) -> list[str]:
    """Return for each letter the first word of its name: LATIN, CYRILLIC, CJK."""
    letters = (c for c in normal_form("NFKC", text) if c.isalpha())
    return [unicodedata.name(c, "UNKNOWN").split(" ")[0] for c in letters]


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
    """Return the pattern of 30 marks before another. A mark's decomposition begins with a combining character."""
    chars = map(chr, range(_FIRST_MARK, _LAST_MARK + 1))
    marks = "".join(char for char in chars if unicodedata.combining(unicodedata.normalize("NFKD", char)[0]))
    return re.compile(f"[{marks}]{{{_MOST_MARKS}}}(?=[{marks}])")


_CJK = f"[{HAN}{KANA}\u3000-\u303f\u30fb\uff01-\uff65]"
_CJK_LINE_END = re.compile(f"(?<={_CJK})\n(?={_CJK})")


def join(texts: Iterable[str]) -> str:
    """Return the texts as one, with a space between two texts unless both sides are in a script without spaces."""
    joined = ""
    for text in (t.strip() for t in texts):
        joined += f"{joint(joined, text)}{text}"
    return joined


def dialogue(turns: Iterable[tuple[str, str]]) -> str:
    """Return a line for each run of texts by one speaker: the speaker's name, if there is one, and the joined texts.

    `turns`: pairs of name and text.
    """
    return "\n".join(
        f"{speaker}: {text}" if speaker else text
        for speaker, text in ((name, join(text for _, text in run)) for name, run in groupby(turns, key=itemgetter(0)))
    )


def unbroken(text: str) -> str:
    """Return the lines of a text as one line. Chinese and Japanese lines are joined without a space, those of all other
    scripts with one, even if the script has spaces only between clauses."""
    return " ".join(_CJK_LINE_END.sub("", text).splitlines())


def joint(left: str, right: str) -> str:
    """Return the separator of two texts: a space, or "" between scripts without spaces and next to an empty text."""
    if not left or not right or (is_unspaced(left[-1]) and is_unspaced(right[0])):
        return ""
    return " "


# A word with the space before it; a character in scripts without spaces.
_UNIT = re.compile(rf"\s*(?:[{LETTERS}{PUNCTUATION}]|[^\s{LETTERS}{PUNCTUATION}]+)")


def continued(shown: str, text: str) -> str:
    """Return `shown` with the words of `text` that come after it: no word of `shown` is removed, and none is repeated.

    The two are aligned from the beginning with the fewest changed words. If `text` begins with `shown`, return `text`.
    """
    if text.startswith(shown):
        return text
    ours, theirs = _units(shown), _units(text)
    reached, used = _aligned([key(unit) for unit in ours], [key(unit) for unit in theirs])
    if reached < len(ours):
        return shown
    rest = "".join(theirs[used:])
    if rest and not rest[0].isspace():
        rest = joint(shown, rest) + rest
    return shown + rest


def _units(text: str) -> list[str]:
    return _UNIT.findall(text.rstrip())  # searching spaces at the end takes quadratic time


def key(unit: str) -> str:
    return "".join(char for char in unit.casefold() if char.isalnum()) or unit.strip()


def _aligned(ours: list[str], theirs: list[str]) -> tuple[int, int]:
    """Return how many units of each list are aligned once one of the two is used up: the longest of the alignments with
    the fewest changes."""
    costs = list(range(len(theirs) + 1))
    best = (len(theirs), 0, len(theirs))  # cost, ours, theirs: the last column, then the last row
    for i, mine in enumerate(ours, start=1):
        above, costs[0] = costs[0], i
        for j, their in enumerate(theirs, start=1):
            above, costs[j] = costs[j], min(costs[j] + 1, costs[j - 1] + 1, above + (mine != their))
        if costs[-1] <= best[0]:
            best = (costs[-1], i, len(theirs))
    for j, cost in enumerate(costs):
        if cost < best[0] or (cost == best[0] and best[1] == len(ours)):
            best = (cost, len(ours), j)
    return best[1], best[2]
