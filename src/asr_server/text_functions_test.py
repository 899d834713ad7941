"""Every function over a text that a caller sends takes linear time, whatever the text is."""

import time
import unicodedata
from contextlib import suppress
from functools import cache, partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.core.errors import AsrError
from asr_server.engine import loops
from asr_server.features.alignments import matching
from asr_server.features.documents import document
from asr_server.features.hotwords.check import Terms
from asr_server.features.rewriting import personal_data
from asr_server.features.rewriting.written_form import written_edits
from asr_server.features.speakers.route import SpeakerForm
from asr_server.features.speech_output.requests import markdown_chapters
from asr_server.features.speech_output.script import language_of, spoken_s
from asr_server.features.speech_output.spoken_form import spoken_form
from asr_server.features.translation import translator
from asr_server.recordings.requests import PersonalData
from asr_server.subtitle import alignment, cue_segmentation, cues
from asr_server.subtitle.cue_segmentation import Passage
from asr_server.text import languages, scripts, sentences, words
from asr_server.text.scripts import normal_form

_CONFIG = cues.CueConfig()
_SPEECH = [(0, 10_000_000)]


FUNCTIONS = {
    "normal_form": partial(normal_form, "NFKD"),
    "words.split": words.split,
    "words.gaps": lambda text: words.gaps(text, text.split()),
    "words.measure": words.measure.__wrapped__,
    "words.phrase_ends": words.phrase_ends,
    "scripts.letter_names": scripts.letter_names,
    "scripts.unbroken": scripts.unbroken,
    "scripts.join": lambda text: scripts.join(text),
    "languages.normalize": languages.normalize,
    "languages.find": languages.find,
    "words.boundary_after": words.boundary_after.__wrapped__,
    "words.ends_sentence": words.ends_sentence,
    "words.syllables": words.syllables.__wrapped__,
    "sentences": lambda text: sentences.sentences(text, "de"),
    "sentences.stream": lambda text: sentences.SentenceStream("en").push(text),
    "loops.collapse": loops.collapse,
    "alignment.letters": alignment.letters,
    "alignment.estimate": lambda text: alignment.estimate(text, "English", _SPEECH),
    "cues": lambda text: cue_segmentation.cues([Passage(text, alignment.estimate(text, "English", _SPEECH))], _CONFIG),
    "cues.relayout": lambda text: cue_segmentation.relayout(text, _CONFIG),
    "cues.text_lines": cues.text_lines,
    "cues.srt": lambda text: cues.parse_srt(cues.render_srt([cues.Cue(0, 1, text)]) + text),
    "cues.vtt": lambda text: cues.parse_vtt(cues.render_vtt([cues.Cue(0, 1, text, speaker=text)]) + text),
    "matching.divided": matching.divided,
    "matching.match": lambda text: matching.match(matching.divided(text), [("hello", 0)]),
    "hotwords": Terms,
    "spoken_form": lambda text: spoken_form(text, "en"),
    "language_of": lambda text: language_of(text, "en"),
    "spoken_s": spoken_s,
    "markdown_chapters": lambda text: markdown_chapters(f"# {text}.\n{text}\n# {text}"),
    "speaker": lambda text: SpeakerForm(name=text, consent=text),
    "personal_data": lambda text: personal_data.find([(text, "en")], frozenset(PersonalData)),
    "written_form": lambda text: list(written_edits(text, "en")),
    "translation.one_line": translator.one_line,
    "translation.cue_text": translator.cue_text,
    "translation.response": lambda text: translator.read_response(f'{{"1": "{text}", "2": {text}', ["1", "2"]),
    "documents": lambda text: [
        write(document.Document([document.DocumentPart(0, document.clean(text), text)], text))
        for write in (document.markdown, document.docx)
    ],
    "documents.direction": document.is_right_to_left,
}
_LEAST_S = 0.001  # less is noise
_SPECIAL = "".join(
    {
        *map(chr, range(32, 127)),
        *"\t\n\r\x1c\x85\u2028\u2029\u00ad\u200b\u200d\u202e\u034f\ufe0f\ufeff",  # blanks and what is not shown
        *f"{words.OPENING}{words.CLOSING}{words.GLUED[:5]}「」…«»–—",
        *"\u0301\u0316\u0344\u0f73\uff9e\u0e33\u094d\ufdfa①é",  # marks, and what is one or many in a decomposition
        *"中あア한ᄀกကកابअкאω🇩👩",
    }
)


@cache
def _alphabet():
    """Return each special character and one of each category. Scanning all characters takes a second."""
    by_category = {}
    for code in {*range(0x110000)} - {*range(0xD800, 0xE000)}:  # surrogates are refused where texts come in
        by_category.setdefault(unicodedata.category(chr(code)), []).append(chr(code))
    return sorted({*_SPECIAL, *(found[len(found) // 2] for found in by_category.values())})


def _took_s(function, text):
    began_s = time.thread_time()
    with suppress(AsrError, ValueError):
        function(text)
    return time.thread_time() - began_s


def _is_linear(function, text_of):
    """Return True if twice the text takes at most three times as long. A longer one confirms that it takes more."""
    return not all(_takes_three_times(function, text_of, count) for count in (750, 3_000))


def _takes_three_times(function, text_of, count):
    once, twice = text_of(count), text_of(2 * count)
    once_s = twice_s = float("inf")
    for _ in range(6):
        twice_s = min(twice_s, _took_s(function, twice))
        if twice_s < _LEAST_S:
            return False
        once_s = min(once_s, _took_s(function, once))
        if twice_s <= 3 * once_s:
            return False
    return True


@pytest.mark.slow("measures a text of each kind of character")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_run_of_any_character_takes_linear_time(name):
    """The runs are of one character of each category, of each special one, and of three letters and digits of ASCII."""
    function = FUNCTIONS[name]
    alphabet = [char for char in _alphabet() if not (char.isascii() and char.isalnum()) or char in "aA0"]
    for text in ("a 1", "中 あ"):  # what is imported and computed with the first
        _took_s(function, text)
    assert [c for c in alphabet if not _is_linear(function, lambda count, c=c: f"a{count * c}a")] == []


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(deadline=None)
@given(data=st.data())
def test_a_repeated_text_takes_linear_time(name, data):
    """Whatever is repeated, and whatever is before and after it."""
    some = st.text(st.one_of(st.sampled_from(_alphabet()), st.characters(exclude_categories=["Cs"])), max_size=3)
    before, part, after = data.draw(some), data.draw(some) or "(", data.draw(some)
    assert _is_linear(FUNCTIONS[name], lambda count: before + count // len(part) * part + after)
