"""Splits a text in any script into words with their punctuation. The words and the gaps give the text back.

Words are separated by spaces. Each Chinese or Japanese character is a word of its own, as it is for the forced aligner
(small kana and length marks stay with the character before). Thai is cut where BudouX finds words; other scripts
without spaces are cut between grapheme clusters. Closing punctuation stays with the word before, even after a space
("Bonjour !"), and opening punctuation with the word after. So a line that is broken between words does not begin with
a closing mark or end with an opening one. Every word holds a letter, digit or symbol, unless the text has none.

In scripts without spaces, the small models of BudouX (Apache-2.0) decide where a line may break: they find words in
Thai and phrases in Japanese and Chinese, in plain Python, at 2.4 us a character. A text's width is in columns, as
terminals and subtitle rules count them. The boundary after a word depends on the punctuation at its end, and the time
to say the word on its script.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, IntEnum, auto
from functools import cache, lru_cache, wraps
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import wcwidth

from asr_server.text import scripts
from asr_server.text.scripts import joint

if TYPE_CHECKING:
    from budoux.parser import Parser


_KANA = re.compile(f"[{scripts.KANA}]")
_HAN = re.compile(f"[{scripts.HAN}]")
# 32 flags at a time: `wcswidth` takes quadratic time for a run of flags.
_FLAGS = re.compile("([\U0001f1e6-\U0001f1ff]{64})")


def phrase_ends(run: str) -> frozenset[int]:
    """Offsets in `run`, a text without spaces, at which a phrase ends, including the end of `run`.

    In a script without a model, a phrase ends after every character. Han is treated as Japanese if `run` also has kana,
    otherwise as simplified Chinese.
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


F = TypeVar("F", bound=Callable[..., Any])
# The caches keep the results for this many words of at most this length: callers choose how long a word is.
_KEPT_WORDS, _KEPT_CHARS = 65_536, 64


def _kept(function: F) -> F:
    """Cache the results for short words."""
    cached: Any = lru_cache(_KEPT_WORDS)(function)

    @wraps(function)
    def found(word: str, *more: str) -> Any:
        if len(word) > _KEPT_CHARS:
            return function(word, *more)
        return cached(word, *more)

    return cast(F, found)


class Width(NamedTuple):
    """The width of a text."""

    columns: int  # display columns
    wide: int  # characters that take two of them


@_kept
def measure(text: str) -> Width:
    """Return the width of a text without control characters: CJK counts two columns, a combining mark none."""
    if text.isascii():
        return Width(len(text), 0)
    columns = max(0, sum(map(wcwidth.wcswidth, _FLAGS.split(text))))
    wide = sum(1 for char in text if wcwidth.wcwidth(char) == 2)
    return Width(columns, min(wide, columns // 2))  # several wide characters may combine to one, as emoji do


OPENING = "([{¿¡«‹‘“‚„「『【〔〖〘〚《〈〝（［｛｟｢"
CLOSING = ")]}!?,;、。，．：；！？…‥）］｝｠｣」』】〕〗〙〛》〉〞〟।॥؟،؛·・ๆฯ"
# Characters that belong to the one before: small kana, and marks of length and repetition.
GLUED = "ぁぃぅぇぉっゃゅょゎゕゖァィゥェォッャュョヮヵヶㇰㇱㇲㇳㇴㇵㇶㇷㇸㇹㇺㇻㇼㇽㇾㇿｧｨｩｪｫｬｭｮｯｰー々ゝゞヽヾ"
_LEADING_VOWELS = "เแโใไເແໂໃໄ"  # written before the consonant, pronounced after it
_SPOKEN_PUNCTUATION = "%&@#‰％＆＠＃"
_DASHES = "-‐–—"
_SENTENCE_ENDS = ".!?…؟"
_UNBREAKABLE_SPACES = "\u00a0\u2007\u202f"

_LETTER = re.compile(f"[{scripts.LETTERS}]")
_CJK_PUNCTUATION = re.compile(f"[{scripts.PUNCTUATION}]")
_THAI = re.compile(f"[{scripts.THAI}]+")


class _Kind(Enum):
    SPACE = auto()
    LETTER = auto()  # of a script without spaces
    CORE = auto()  # any other letter, digit or symbol
    OPEN = auto()
    CLOSE = auto()
    MARK = auto()  # punctuation that may stand on either side


_WORDY = {_Kind.LETTER, _Kind.CORE}


def split(text: str) -> list[str]:
    """Return the words of `text` in order. Around them there is only white space, often none."""
    cuts = [0, *_word_starts(text), len(text)]
    words = (text[start:end].strip() for start, end in pairwise(cuts))
    return [word for word in words if word]


def gaps(text: str, words: Sequence[str]) -> list[str]:
    """Return the white space before each of `words`, which come from `text` in order; `joint` before one that is not
    found."""
    found, position, before = [], 0, ""
    for word in words:
        at = position
        while at < len(text) and text[at].isspace():
            at += 1
        if text.startswith(word, at):
            found.append(text[position:at])
            position = at + len(word)
        else:
            found.append(joint(before, word))
        before = word
    return found


def _word_starts(text: str) -> Iterator[int]:
    """Yield the offsets at which the second and each later word begins. White space may be on either side of them."""
    clusters = list(text) if text.isascii() else list(wcwidth.iter_graphemes(text))
    kinds = _kinds(clusters)
    faced = _faced(kinds)
    thai = {run.start() + end for run in _THAI.finditer(text) for end in phrase_ends(run[0])}
    offset = 0
    begun = unspaced = spaced = False  # the word so far has a core; its last character is unspaced; a space came after
    for i, (cluster, kind) in enumerate(zip(clusters, kinds, strict=True)):
        if begun and _begins(kind, faced[i], spaced=spaced, unspaced=unspaced) and not _inseparable(text, offset, thai):
            yield offset
            begun = False
        if kind in _WORDY:
            begun, unspaced = True, kind is _Kind.LETTER
        elif _CJK_PUNCTUATION.match(cluster):
            unspaced = True
        spaced = kind is _Kind.SPACE
        offset += len(cluster)


def _begins(kind: _Kind, faced: _Kind | None, *, spaced: bool, unspaced: bool) -> bool:
    """Return True if a word begins at a cluster. `faced`: see `_faced`."""
    if kind is _Kind.LETTER:
        return True
    if kind is _Kind.CORE:
        return spaced or unspaced
    if kind is _Kind.OPEN:
        return (spaced or unspaced or faced is _Kind.LETTER) and faced in _WORDY
    return kind is _Kind.MARK and spaced and faced in _WORDY


def _faced(kinds: Sequence[_Kind]) -> list[_Kind | None]:
    """Return for each cluster the kind of the first cluster from there on that is not an opening or neutral mark. From
    an opening mark on, spaces are skipped too."""
    found: list[_Kind | None] = []
    inside = outside = None  # after an opening mark, and after a neutral one
    for kind in reversed(kinds):
        if kind not in (_Kind.OPEN, _Kind.MARK):
            outside = kind
            inside = inside if kind is _Kind.SPACE else kind
        found.append(inside if kind is _Kind.OPEN else outside)
    return found[::-1]


def _inseparable(text: str, offset: int, thai: set[int]) -> bool:
    """True if the character at `offset` cannot be separated from the one before it."""
    before, here = text[offset - 1], text[offset]
    if here in GLUED or before in _LEADING_VOWELS:
        return not before.isspace()
    return bool(_THAI.match(here) and _THAI.match(before)) and offset not in thai


def _kinds(clusters: Sequence[str]) -> list[_Kind]:
    kinds: list[_Kind] = []
    quoting = ended = False
    for i, cluster in enumerate(clusters):
        kind = _kind(cluster[0])
        if kind is _Kind.MARK and ended and kinds[-1] is _Kind.SPACE and cluster in _DASHES:
            kind = _Kind.OPEN  # a dash that opens the words of the next speaker
        ended = cluster in _SENTENCE_ENDS or (ended and kind not in _WORDY)
        if cluster == '"':
            quoting = not quoting
            kind = _Kind.OPEN if quoting else _Kind.MARK
        behind = bool(kinds) and kinds[-1] is not _Kind.SPACE
        if kind is _Kind.OPEN and behind and (i + 1 == len(clusters) or _kind(clusters[i + 1][0]) is _Kind.SPACE):
            kind = _Kind.MARK  # some languages close quotes with the mark that others open with
        kinds.append(kind)
    return kinds


@lru_cache(16_384)  # more characters than any text of a language has
def _kind(char: str) -> _Kind:
    category = unicodedata.category(char)
    if char in OPENING:
        return _Kind.OPEN
    if char in CLOSING:
        return _Kind.CLOSE
    if char.isspace() and char not in _UNBREAKABLE_SPACES:
        return _Kind.SPACE
    if char in _SPOKEN_PUNCTUATION or (category[0] in "LNS" and not _LETTER.match(char)):
        return _Kind.CORE
    return _Kind.LETTER if _LETTER.match(char) and category[0] != "P" else _Kind.MARK


_TAIL = re.compile(r"[^\w\u0300-\u036f]*")  # matched on the reversed word: a search for its end takes quadratic time
# Includes scripts that occur only in translations: Armenian, Ethiopic, Khmer, Burmese, Tibetan.
_CLAUSE = re.compile("[,;:、，；：､،؛—–՝፣၊]")
SENTENCE_MARKS = ".!?…。．！？｡।॥؟۔։።។။།"
_SENTENCE = re.compile(f"[{SENTENCE_MARKS}]")
# Abbreviations whose full stop ends no sentence. A single letter is one too: "Dr. Who", "J. S. Bach".
_TITLES = re.compile(r"mr|mrs|ms|dr|prof|st|sr|jr|vs|hr|fr|nr|bzw|sra|srta|mme|mlle", re.IGNORECASE)
# Ordinals as in dates, "am 3. Mai". "at 10." at the end of a sentence looks the same; years and sums are longer.
_ORDINAL = re.compile(r"\W*\d{1,2}")
# A sentence end in any script that the model writes, and perhaps closing quotes and brackets.
_SENTENCE_END = re.compile(f"[{SENTENCE_MARKS}][\"'”’»」』)\\]）]*\\s*\\Z")


class Boundary(IntEnum):
    """A boundary after a word, by strength. `TIED`: the word belongs to the next one, like a title: "Dr. Who"."""

    TIED = -1
    NONE = 0
    CLAUSE = 1
    SENTENCE = 2


@_kept
def boundary_after(word: str) -> Boundary:
    """Return the strongest boundary among the punctuation at the end of `word`."""
    tail = word[len(word) - _TAIL.match(word[::-1]).end() :]  # type: ignore[union-attr]  # it matches any string
    if tail == "." and (kind := _abbreviated(word[:-1])) is not None:
        return kind
    if _SENTENCE.search(tail):
        return Boundary.SENTENCE
    return Boundary.CLAUSE if _CLAUSE.search(tail) else Boundary.NONE


def ends_sentence(text: str) -> bool:
    return bool(_SENTENCE_END.search(text))


def _abbreviated(core: str) -> Boundary | None:
    """Return the boundary after an abbreviation or ordinal with a full stop; None for any other word."""
    letters = re.split(r"\W", core)[-1]
    if _TITLES.fullmatch(letters):
        return Boundary.TIED
    is_initial = len(letters) == 1 and letters.isalpha() and letters.isascii()
    return Boundary.NONE if is_initial or _ORDINAL.fullmatch(core) else None


# The unit of time is the syllable because all languages have similar syllable rates: 5.2 to 7.8 a second in seven
# languages (Pellegrino, Coupé and Marsico, "A cross-language perspective on speech information rate", Language 87,
# 2011). The weight of a character depends on what it writes:
#
# | characters | syllables | reason |
# | --- | --- | --- |
# | Hangul, kana, Han | 1 | each writes a syllable (a mora); in Japanese a Han character is read as one or two: 1.5 |
# | letters of Indic scripts | 1 | a consonant letter carries its vowel; a consonant with a virama joins the next |
# | letters of South-East Asia | 1/2 | vowels and final consonants have letters of their own, marks are not counted |
# | letters of abjads | 1/2 | short vowels are not written |
# | letters of alphabets | 1/3 | common syllables have two or three sounds, some written with two letters |
# | words of Vietnamese | 1 | it is written syllable by syllable |
# | digits | 1 1/2 | each is said with its place, except the last: 342 has five syllables in Chinese |
# | symbols | 2 | read as a word: "percent", "euro" |
# | marks of a clause or sentence | 1/2 | the syllable before a boundary is lengthened |
_JAPANESE, _VIETNAMESE = "Japanese", "Vietnamese"
_SYLLABIC = re.compile(f"[{scripts.KANA}\\uac00-\\ud7a3]")
_GLUED_KANA = re.compile("[ぁぃぅぇぉゃゅょゎァィゥェォャュョヮ]")  # they change the vowel of the character before
_INDIC = re.compile("[\\u0900-\\u0dff]")
_SOUTH_EAST = re.compile("[\\u0e00-\\u0eff\\u1000-\\u109f\\u1780-\\u17ff]")
_ABJAD = re.compile("[\\u0590-\\u08ff\\ufb1d-\\ufdff\\ufe70-\\ufeff]")
_VIRAMA_CLASS = 9  # the canonical combining class of viramas
_LENGTHENING = {Boundary.TIED: 0.0, Boundary.NONE: 0.0, Boundary.CLAUSE: 0.5, Boundary.SENTENCE: 0.5}
_MIN_SYLLABLES = 0.5


@_kept
def syllables(word: str, language: str = "") -> float:
    """Return the estimated syllables of `word` in `language` (the model's name for it); at least 0.5."""
    lengthening = _LENGTHENING[boundary_after(word)]
    if language == _VIETNAMESE and not any(char.isdigit() for char in word):
        return 1 + lengthening
    viramas = sum(1 for char in word[:-1] if unicodedata.combining(char) == _VIRAMA_CLASS)
    return max(_MIN_SYLLABLES, sum(_weight(char, language) for char in word) - viramas + lengthening)


def _weight(char: str, language: str) -> float:
    category = unicodedata.category(char)
    if category[0] == "N" and not _HAN.match(char):
        return 1.5
    if category[0] == "S" or char in "%&@％＆＠":
        return 2.0
    return _letter(char, language) if category[0] == "L" or _HAN.match(char) else 0.0


def _letter(char: str, language: str) -> float:
    if _HAN.match(char):
        return 1.5 if language == _JAPANESE else 1.0
    if _GLUED_KANA.match(char):
        return 0.0
    if _SYLLABIC.match(char) or _INDIC.match(char):
        return 1.0
    return 1 / 2 if _SOUTH_EAST.match(char) or _ABJAD.match(char) else 1 / 3
