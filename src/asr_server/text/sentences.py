"""Divides a text into sentences, whole or as it arrives.

The end mark of a sentence and the beginning of the text after it decide where it ends, so a text that arrives in pieces
has the same sentences as the whole text. The library sentencex recognises abbreviations with a full stop, in many
languages. It is asked about one full stop at a time, because it takes quadratic time for some texts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import wcwidth

from asr_server.text import scripts
from asr_server.text.words import SENTENCE_MARKS, Boundary, boundary_after

MAX_CHARACTERS = 400
_SHORT_LINE_CHARACTERS = 50  # shorter lines are not wrapped: a heading, a verse, an address
_MAX_WORD_CHARACTERS = 40
_LOOKAHEAD_CHARACTERS = 6  # of a line, to know whether it begins with the marker of a list item

_NARROW = ".!?…．"  # they also stand inside words and numbers, so a blank has to follow
_ENDS = SENTENCE_MARKS
_CLOSING = "\"'”’»)]}」』）】〉》"
_CLOSERS = re.escape(_CLOSING)
_LINE_ENDS = "\n\r\u2028\u2029"
_LINE_END = re.compile(f"\r\n|[{_LINE_ENDS}]")
# Some quotation marks are closing marks in one language and opening marks in another: "»Ja.« Er", "« Ça va ? » dit-il."
_CANDIDATE = re.compile(
    f"(?P<marks>[{_ENDS}][{_ENDS}{_CLOSERS}]*(?:[“‘«](?=[\\s,])|[ \xa0\u202f]»(?=[\\s,]))?)|[{_LINE_ENDS}]"
)
_SPOKEN = re.compile(r"[^\W_]")
_FOLLOWING = re.compile(f"[{_LINE_ENDS}]|[^\\W_]|[{_ENDS}]")
_BLANKS = re.compile(r"\s*")
_WORD = re.compile(r"\w+")
_LIST_MARKER = re.compile(r"(?:[-*+•‣◦·–—]|#{1,4}|\(?\d{1,3}[.)]|\(?[A-Za-z][.)])\s")
_MARKER_START = re.compile(r"[-*+•‣◦·–—#(\d]|[A-Za-z](?:[.)]|\Z)")
_ENUMERATOR = re.compile(r"\W*(?:\d{1,3}|[A-Za-z])")
_CLAUSE_END = re.compile(r"[,;:،؛՝–—](?=\s)|[、，；：､፣၊]")
# Languages that write ordinal numbers with a full stop: "am 3. Mai".
_ORDINALS_WITH_STOP = frozenset(
    ["cs", "da", "de", "et", "fi", "hr", "hu", "is", "lv", "nb", "nn", "no", "pl", "sk", "sl", "sr", "tr"]
)


@dataclass(frozen=True, slots=True)
class TextSpan:
    """A sentence and its place."""

    text: str  # the given text from `start` to `end`
    start: int  # in characters
    end: int


def sentences(text: str, language: str) -> list[TextSpan]:
    """Return the sentences of `text`, each of at most `MAX_CHARACTERS`, without the blanks around them.

    `language` is a language tag. Together the sentences hold every letter and digit of the text once. Pieces with
    neither are left out.
    """
    spans = _Divider(language).divide(text, complete=True)
    return [TextSpan(text[start:end], start, end) for start, end in spans]


class SentenceStream:
    """Finds the sentences of a text that arrives in pieces, each as soon as its end is certain.

    It is certain when the end mark and the beginning of the next sentence have arrived. At most `MAX_CHARACTERS` wait.
    """

    def __init__(self, language: str) -> None:
        self._divider = _Divider(language)
        self._waiting = ""

    @property
    def waiting_characters(self) -> int:
        return len(self._waiting)

    def push(self, piece: str) -> list[str]:
        return self._take(piece, complete=False)

    def flush(self) -> list[str]:
        """End the text and return its remaining sentences. Afterwards the stream takes another text."""
        found = self._take("", complete=True)
        self._divider.start_line()
        return found

    def _take(self, piece: str, *, complete: bool) -> list[str]:
        text = self._waiting + piece
        found = [text[start:end] for start, end in self._divider.divide(text, complete=complete)]
        self._waiting = text[self._divider.position :]
        return found


class _Divider:
    """Finds sentences in order. Between calls it remembers how far into the current line it is."""

    def __init__(self, language: str) -> None:
        self._language = re.split("[-_]", language.lower(), maxsplit=1)[0]
        self.position = 0  # of the first character that the last call did not decide
        self.start_line()

    def start_line(self) -> None:
        self._column = 0  # of `position` in its line
        self._in_list_item = False

    def divide(self, text: str, *, complete: bool) -> list[tuple[int, int]]:
        """Return the start and end of each sentence whose end is certain; with `complete`, of every sentence."""
        found = []
        self._skip_blanks(text, 0)
        while self.position < len(text):
            start = self.position
            self._in_list_item = self._in_list_item or (not self._column and bool(_LIST_MARKER.match(text, start)))
            end = self._end(text, complete=complete)
            if end is None:
                break
            if _SPOKEN.search(text, start, end):
                found.append((start, start + len(text[start:end].rstrip())))
            self._advance(text, start, end)
            self._skip_blanks(text, end)
        return found

    def _advance(self, text: str, start: int, end: int) -> None:
        line_ends = list(_LINE_END.finditer(text, start, end))
        if line_ends:
            self.start_line()
        self._column += end - (line_ends[-1].end() if line_ends else start)

    def _skip_blanks(self, text: str, start: int) -> None:
        end = _BLANKS.match(text, start).end()  # type: ignore[union-attr]  # it matches any string
        if _LINE_END.search(text, start, end):
            self.start_line()
        self.position = end

    def _end(self, text: str, *, complete: bool) -> int | None:
        """Return the end of the sentence that begins at `position`; None if it cannot be known yet."""
        start, limit = self.position, self.position + MAX_CHARACTERS
        # One character more shows whether a line ends at the limit, and whether a grapheme continues there.
        visible = text[start : limit + 1]
        view = _View(visible, self._language, complete and len(text) <= limit)
        line_start, column, in_list_item = 0, self._column, self._in_list_item
        for candidate in _CANDIDATE.finditer(visible):
            if candidate["marks"]:
                ends = view.ends_at(candidate)
            else:
                length = column + candidate.start() - line_start
                ends = view.line_ends_sentence(candidate.start(), in_list_item or length < _SHORT_LINE_CHARACTERS)
                line_start, column, in_list_item = candidate.end(), 0, False
            if ends is None:
                break
            if ends:
                return start + (candidate.end() if candidate["marks"] else candidate.start())
        if len(text) > limit:
            return start + _forced_end(visible)
        return len(text) if complete else None


@dataclass(frozen=True, slots=True)
class _View:
    """The text from the beginning of a sentence on, as far as it is known and may matter."""

    text: str
    language: str  # ISO code
    complete: bool  # nothing follows

    def ends_at(self, candidate: re.Match[str]) -> bool | None:
        """True if the sentence ends with these end marks; None if that depends on what follows the view."""
        start, end = candidate.span()
        if not _SPOKEN.search(self.text, 0, start):
            return False
        following = _FOLLOWING.search(self.text, end)
        if not following:
            return False if self.complete else None
        marks = candidate[0].rstrip(f"{_CLOSING}“‘« \xa0\u202f")
        first = following[0]
        if first in _LINE_ENDS:
            return marks != "." or not self._is_abbreviated(start)
        if first in _ENDS:
            return False
        blank = any(char.isspace() for char in self.text[end : following.start()])
        if not blank and marks[-1] in _NARROW and not scripts.is_unspaced(self.text[end]):
            return False
        if first.islower() and (marks[-1] in ".…" or marks != candidate[0]):
            return False
        return marks != "." or self._stop_ends(start, following.start())

    def line_ends_sentence(self, at: int, ends_before_capitals: bool) -> bool | None:
        """True if the sentence ends with the line that ends at `at`, False if it continues on the next line, as in
        wrapped text."""
        gap = _BLANKS.match(self.text, at)
        assert gap
        if len(_LINE_END.findall(gap[0])) > 1:
            return True
        next_line = self.text[gap.end() : gap.end() + _LOOKAHEAD_CHARACTERS]
        if _LIST_MARKER.match(next_line):
            return True
        is_short = len(next_line) < _LOOKAHEAD_CHARACTERS
        if is_short and not self.complete and (not next_line or _MARKER_START.match(next_line)):
            return None
        return not next_line[:1].islower() and (ends_before_capitals or self.text[at - 1 : at] == ":")

    def _stop_ends(self, stop: int, following: int) -> bool | None:
        """True if a sentence ends with the full stop at `stop`."""
        if _ENUMERATOR.fullmatch(self.text, 0, stop):
            return False
        if not self._is_abbreviated(stop):
            return True
        word = _WORD.match(self.text, following)
        assert word
        if word.end() == len(self.text) and not self.complete and len(word[0]) < _MAX_WORD_CHARACTERS:
            return None
        return ends_before(self._word_before(stop), word[0][:_MAX_WORD_CHARACTERS], self.language)

    def _is_abbreviated(self, stop: int) -> bool:
        return not ends_before(self._word_before(stop), "Xx", self.language)

    def _word_before(self, stop: int) -> str:
        words = self.text[max(0, stop - _MAX_WORD_CHARACTERS) : stop].split()
        return re.sub(r"^[\W_]+", "", words[-1]) if words else ""


@lru_cache(maxsize=4096)
def ends_before(word: str, next_word: str, language: str) -> bool:
    """True if the full stop between two words ends a sentence."""
    if language != "en":  # in English, sentencex also knows the words that begin sentences
        letters = re.split(r"[\W_]", word)[-1]
        is_initial = len(letters) == 1 and letters.isupper()
        is_ordinal = word.isdecimal() and len(word) <= 2 and language in _ORDINALS_WITH_STOP
        if is_initial or is_ordinal or boundary_after(f"{word}.") is Boundary.TIED:
            return False
    import sentencex  # with the first text that needs it

    text = f"{word}. {next_word}".encode("utf-8", "replace").decode()  # sentencex refuses lone surrogates
    return bool(sentencex.segment(language, text)[-1] == next_word)


def _forced_end(text: str) -> int:
    """Return where to cut a sentence of more than `MAX_CHARACTERS`; `text` is its beginning and one character more.

    Cut after the last clause that ends in the second half, or else after the last word, or else between two graphemes.
    """
    half = MAX_CHARACTERS // 2
    clauses = [found.end() for found in _CLAUSE_END.finditer(text, half, MAX_CHARACTERS)]
    if clauses:
        return clauses[-1]
    blank = max((at for at in range(half, MAX_CHARACTERS + 1) if text[at].isspace()), default=0)
    if blank:
        return blank
    end, last = 0, 0
    for grapheme in wcwidth.iter_graphemes(text):
        last, end = end, end + len(grapheme)
    cut = last or MAX_CHARACTERS  # a grapheme longer than a sentence is cut
    is_pair = "\ud800" <= text[cut - 1] <= "\udbff" and "\udc00" <= text[cut] <= "\udfff"
    return cut - 1 or MAX_CHARACTERS if is_pair else cut
